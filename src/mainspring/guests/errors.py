"""The errors a host program or a guest client of this part can meet."""

from __future__ import annotations

from mainspring.errors import MainspringError


class RequestRefused(MainspringError):
    """A capability answered a request with an error frame; `message` is the text of that frame."""

    code = "request_refused"

    def __init__(self, message: str, *, remedy: str = "", trace: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.trace = trace  # where, for the error frame; by default what the capability says


class NotAttachable(MainspringError):
    """What was given to a guest is no open descriptor."""

    code = "not_attachable"


class NeedsLinux(MainspringError):
    """Waiting for descriptors is built on epoll, which only Linux has."""

    code = "needs_linux"


class StreamClosed(MainspringError):
    """The other side ended the ZCL1 stream, or sent what is none."""

    code = "stream_closed"
