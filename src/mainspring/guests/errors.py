"""The errors a host program or a guest client of this part can meet, and the result codes of the guest ABI."""

from __future__ import annotations

from enum import IntEnum

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


class Code(IntEnum):
    """What a guest's call came to when it gave no count; plain negative numbers on the wire."""

    OK = 0
    INVALID = -1
    BOUNDS = -2
    NOENT = -3
    DENIED = -4
    CLOSED = -5
    AGAIN = -6
    NOSYS = -7
    OOM = -8
    IO = -9
    INTERNAL = -10
