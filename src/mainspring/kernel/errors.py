"""Everything that can go wrong with a message, as data.

The kernel's own errors have types in `Sys.*` and one shape: a code from 400 to 599 with the meaning HTTP gives it, a
sentence, the type of the request, and the remedy. `Fail` is different: with it a handler refuses a request in order,
and the error travels under the request's type. Neither is ever made from a payload, so both are safe to log and to
send back.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.errors import STATUS_OF_CODE, BootError, Fail, MainspringError
from mainspring.telemetry import error_keeping

SCHEMA_ERROR: Final = "Sys.SchemaError"
ROUTING_ERROR: Final = "Sys.RoutingError"
TIMEOUT: Final = "Sys.Timeout"
ACTOR_CRASH: Final = "Sys.ActorCrash"
ACTOR_FAULT: Final = "Sys.ActorFault"
DUPLICATE_ID: Final = "Sys.DuplicateId"
TOO_LARGE: Final = "Sys.TooLarge"
UNHEALTHY: Final = "Sys.Unhealthy"
SHUTTING_DOWN: Final = "Sys.ShuttingDown"
NOT_STORED: Final = "Sys.NotStored"
UNREACHABLE: Final = "Sys.Unreachable"  # the node that handles it is gone, or could not be asked


class ErrorData(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of an error message."""

    code: int
    message: str
    remedy: str = ""
    requestType: str = ""
    originalId: str = ""
    capabilityId: str = ""
    cause: Any = None


class BadOutput(MainspringError):
    """A handler gave something its contract does not allow; the actor that gave it is replaced."""

    code = "bad_output"


class RemoteError(Exception):
    """Something went wrong in another process. Its text says all of it."""


class WaitsForItself(MainspringError):
    """A handler asked its own capability, which cannot answer before that handler has ended."""

    code = "waits_for_itself"


class NotConfigured(MainspringError):
    """A handler used a part of the node that is not there."""

    code = "not_configured"


class CapabilityError(BootError):
    """A capability's declaration does not hold together; the node does not start."""

    code = "bad_capability"


def data_of(fail: Fail) -> ErrorData:
    """A refusal as the data of an error message."""
    cause = None if fail.cause is None else data_of(fail.cause)
    return ErrorData(fail.code, encodable(fail.message), remedy=encodable(fail.remedy), cause=cause)


def refusal(error: MainspringError) -> Fail:
    """An error of another part as the answer to a request.

    A request that is wrong in itself is 422, as it is when it does not fit its schema; so is everything the table of
    codes does not list, because a handler is asked about what its caller named.
    """
    status = STATUS_OF_CODE.get(error.code, 422)
    return Fail(422 if status == 400 else status, error.message, remedy=error.remedy)


def temporary_refusal(error: BaseException) -> Fail | None:
    """The answer for a failure that passes by itself, like a full disk or a server that is away; None for any other.

    It is no mistake of the handler that raised it, so it is no reason to replace its actor: a capability that is asked
    often would become unhealthy within moments, and stay so long after the failure is over.
    """
    if isinstance(error, MainspringError) and STATUS_OF_CODE.get(error.code) == 503:
        return refusal(error)
    return None


def is_passing(error: Any) -> bool:
    """Whether the same message may succeed later: the data of an error that is not about the message itself."""
    code = error.get("code") if isinstance(error, dict) else None
    return isinstance(code, int) and (code >= 500 or code == 429)


def unhealthy(capability: str) -> tuple[str, str]:
    """What is wrong with a capability that was given up, and what to do."""
    return (
        f"capability {capability} is unhealthy: it failed too often",
        f"the node's log says why; `mainspring actors restart {capability}` starts it again",
    )


def encodable(text: str) -> str:
    """The text as JSON can hold it: half a surrogate pair, as in the name of a file, becomes a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def text_of(error: BaseException) -> str:
    """The class of an exception and its text, if it has one: `KeyError: 'sku'`. At most 500 characters."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:  # an exception's own method: it may do anything
        text = ""
    if not isinstance(error, RemoteError):
        text = f"{name}: {text}" if text else name
    text = error_keeping.redacted(encodable(text or name))
    return text if len(text) <= 500 else text[:500] + "..."


def is_error_data(data: Any) -> bool:
    """Whether `data` has the shape every error has: code, message, and the same again in `cause`."""
    while True:
        if not isinstance(data, dict):
            return False
        code, text = data.get("code"), data.get("message")
        if not isinstance(code, int) or isinstance(code, bool) or not 400 <= code <= 599 or not isinstance(text, str):
            return False
        if data.get("cause") is None:
            return True
        data = data["cause"]
