"""From what the driver reports to what Mainspring says.

The one question that matters: may the server have done it? A server that could not be reached was told nothing. One
that answered with an error did nothing. A connection that broke while the answer was awaited leaves it open.
"""

from __future__ import annotations

from pymongo.errors import (
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from mainspring.errors import MainspringError
from mainspring.log.contract import LogUnavailable

_ACCESS_CODES = frozenset((13, 18, 31, 8000))  # unauthorized, authentication failed, no such role, Atlas' own
_DUPLICATE = 11000


class LogAccess(MainspringError):
    """The server is there and does not let this node in."""

    code = "log_access"


def never_sent(error: PyMongoError) -> bool:
    """Whether the server certainly did nothing because it heard nothing."""
    return isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError)


def may_pass(error: PyMongoError) -> bool:
    """Whether trying again later may help."""
    if isinstance(error, ConnectionFailure | WriteConcernError):
        return True
    return isinstance(error, OperationFailure) and error.has_error_label("RetryableWriteError")


def translated(error: PyMongoError, shown: str) -> MainspringError:
    """What to raise for it; `shown` is the address without its password."""
    if isinstance(error, OperationFailure) and error.code in _ACCESS_CODES:
        return LogAccess(
            f"MongoDB at {shown} refuses this user: {_reason(error)}",
            remedy="check user, password and authSource in the address, and that the user may read and write there",
        )
    if isinstance(error, ConnectionFailure):
        return LogUnavailable(
            f"MongoDB at {shown} cannot be reached: {_reason(error)}", remedy="is it running, and is the address right?"
        )
    return LogUnavailable(f"MongoDB at {shown} failed: {_reason(error)}", remedy="see the server's log; then try again")


def _reason(error: PyMongoError) -> str:
    """The driver's words, without the description of the whole topology behind them."""
    text = str(error)
    for end in (" (configured timeouts", ", Timeout:", ", full error:"):
        text = text.partition(end)[0]
    return text[:300]


def is_duplicate(error: dict[str, object]) -> bool:
    """Of one write of many: somebody was faster."""
    return error.get("code") == _DUPLICATE
