"""The sentences of a refusal, so that every engine says the same thing for the same reason."""

from __future__ import annotations

from mainspring.log.contract import ABSENT, Append, Put, Refused

MAX_PARTITION = (1 << 31) - 1
MAX_INT = (1 << 63) - 1
MIN_INT = -MAX_INT


def moved_tail(event: Append, actual: int) -> Refused:
    return Refused(
        f"{event.topic!r} partition {event.partition} ends at offset {actual}, not {event.expect}",
        remedy="read what was published meanwhile and decide again",
        actual=actual,
    )


def moved_version(space: str, key: str, expect: int, actual: int) -> Refused:
    if actual == ABSENT:
        found = "does not exist"
    elif expect == ABSENT:
        found = f"already exists (version {actual})"
    else:
        found = f"is at version {actual}, not {expect}"
    return Refused(
        f"the record {key!r} in {space!r} {found}", remedy="read the record again and decide again", actual=actual
    )


def bad_text() -> Refused:
    return Refused("a text holds a lone surrogate", remedy="send well-formed Unicode", code="bad_text")


def not_storable(item: Append | Put) -> Refused | None:
    """Why an operation can never be stored, whatever the state of the log; None when it can."""
    try:
        if isinstance(item, Put):
            item.space.encode()
            item.key.encode()
            if not item.space or not item.key:
                return Refused("a record needs a space and a key", remedy="give both at least one character")
            return None
        for text in (item.topic, item.id, item.key, item.dedupe):
            if text is not None:
                text.encode()
    except UnicodeEncodeError:
        return bad_text()
    if not 0 <= item.partition <= MAX_PARTITION:
        return Refused(f"partition {item.partition} is out of range", remedy="use 0 or more", code="bad_partition")
    for time in (item.ts, item.dedupe_until):
        if not MIN_INT <= time <= MAX_INT:
            return Refused(f"the time {time} is out of range", remedy="use epoch milliseconds", code="bad_time")
    return None


def are_texts(*texts: str) -> bool:
    """Whether these can be asked for: well-formed Unicode."""
    try:
        for text in texts:
            text.encode()
    except (UnicodeEncodeError, AttributeError):
        return False
    return True


def refusal(error: Exception) -> Refused:
    """What an operation that could not even be looked at is refused with."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UnicodeEncodeError):
        return bad_text()
    return Refused(f"an operation holds a value of the wrong type: {error}", code="bad_operation")
