"""What can go wrong for a client, and what to do about it.

What the node refuses arrives as `NodeRefused` with the node's own code (`forbidden`, `too_large`, ...), so that
programs compare codes and never texts. Everything else is decided on this side of the connection.
"""

from __future__ import annotations

from mainspring.errors import MainspringError


class ClientError(MainspringError):
    """Base of what a client raises on purpose."""

    code = "client"


class CannotConnect(ClientError):
    """The node cannot be reached, or does not let this client in."""

    code = "cannot_connect"


class Closed(ClientError):
    """The client was closed; what was not confirmed by then is in doubt."""

    code = "closed"


class NodeRefused(ClientError):
    """The node answered with an error; `code` is the node's. `retry_after_ms` is how long it asks to wait, or 0."""

    code = "refused"
    retry_after_ms: int = 0


class Uncertain(ClientError):
    """A publish may or may not be stored: the node was away for longer than it remembers publish ids.

    Sending it again could double it, so the client does not. `id` is the event's id, to look for it.
    """

    code = "uncertain"

    def __init__(self, message: str, *, remedy: str = "", id: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.id = id


class NotEncodable(ClientError):
    """The value cannot be said in JSON."""

    code = "not_json"


class EventTooLarge(ClientError):
    """The event is larger than this client sends."""

    code = "too_large"


class BadPayload(ClientError):
    """An event's payload is not of the type the subscription asked for."""

    code = "bad_payload"


class AlreadySubscribed(ClientError):
    """This client already consumes this topic with this group."""

    code = "already_subscribed"


class TimedOut(ClientError):
    """No answer in time."""

    code = "timeout"


class BadArgument(ClientError):
    """An argument that cannot mean anything."""

    code = "bad_argument"
