"""The errors a host program or a guest client of this part can meet."""

from __future__ import annotations

from mainspring.errors import MainspringError


class RequestRefused(MainspringError, code="request_refused"):
    """A capability answered a request with an error frame; `message` is the text of that frame."""

    def __init__(self, message: str, *, remedy: str = "", trace: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.trace = trace  # where, for the error frame; by default what the capability says


class NotAttachable(MainspringError, code="not_attachable"):
    """What was given to a guest is no open descriptor."""


class NeedsLinux(MainspringError, code="needs_linux"):
    """Waiting for descriptors is built on epoll, which only Linux has."""


class StreamClosed(MainspringError, code="stream_closed"):
    """The other side ended the ZCL1 stream, or sent what is none."""
