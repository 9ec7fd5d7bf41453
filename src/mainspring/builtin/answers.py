"""What the built-in capabilities share: descriptions, the empty input, errors as answers, answers that fit a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import refusal

ANSWER_BYTES: Final = 13_000  # of a line of 16384: the rest is envelope


class Empty(msgspec.Struct):
    """No input."""


def about(text: str) -> msgspec.Meta:
    """The description of a member, as `Syscall.Describe` shows it."""
    return msgspec.Meta(description=text)


@contextmanager
def errors_as_answers() -> Iterator[None]:
    """Errors of the part that a handler asks become refusals, with the status of their code."""
    try:
        yield
    except MainspringError as error:
        raise refusal(error) from None


def fitting(items: list[Any], most_bytes: int = ANSWER_BYTES) -> list[Any]:
    """As many of the items, from the first one on, as fit one answer."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item)) + 1
        if size > most_bytes:
            return items[:index]
    return items
