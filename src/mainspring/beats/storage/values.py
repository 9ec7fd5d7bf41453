"""Values: JSON in one canonical spelling.

What an enzyme stores is kept as text, not as an object: the text is the copy that nobody else can change, its bytes go
into digests, and equal values have equal text in every process and Python version (keys sorted by code point, no
spaces, floats as the shortest text that reads back the same).

Long texts are kept once, under their SHA-256, in the content store; cells and journals hold a reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from mainspring.beats.errors import InvalidValue

_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=True
).encode
DEEPEST: Final = 400  # levels of lists and mappings; half of what Python's own stack allows
_CONTENT_PATH: Final = re.compile(r"/cas/([0-9a-f]{64})")


def to_text(value: object) -> str:
    """The canonical JSON of a value; `invalid_value` when JSON cannot hold it exactly."""
    try:
        _refuse_odd_shapes(value)
        text = _encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"a {type(value).__name__} cannot be stored: {error}",
            remedy="store what JSON can hold: text, finite numbers, booleans, None, lists, and mappings with text keys",
        ) from None
    return text


def from_text(text: str) -> Any:
    """A fresh copy of the value."""
    return json.loads(text)


def _refuse_odd_shapes(value: object) -> None:
    # The encoder would turn the key 1 into "1" without a word, and two keys into one. And how deep it gets depends on
    # who calls it: a limit of our own makes the same value storable, and readable again, everywhere.
    inside: list[tuple[object, int]] = [(value, 0)]
    while inside:
        each, depth = inside.pop()
        if isinstance(each, dict):
            for key in each:
                if not isinstance(key, str):
                    raise TypeError(f"a key is text, not {type(key).__name__}")
            parts: Iterable[object] = each.values()
        elif isinstance(each, list | tuple):
            parts = each
        else:
            continue
        if depth == DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        inside.extend((part, depth + 1) for part in parts if isinstance(part, dict | list | tuple))


def content_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def content_path(sha256: str) -> str:
    return f"/cas/{sha256}"


def content_of(path: str) -> str | None:
    """The hash a path into the content store names."""
    found = _CONTENT_PATH.fullmatch(path)
    return found[1] if found else None


def mentioned(text: str) -> frozenset[str]:
    """The hashes a stored value refers to by their path."""
    return frozenset(_CONTENT_PATH.findall(text)) if "/cas/" in text else frozenset()
