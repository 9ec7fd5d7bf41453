"""What differs between the states of two beats."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.beats.storage.cells import Cells
from mainspring.beats.storage.values import from_text


class Difference(msgspec.Struct, frozen=True):
    """A path that two beats read differently; None where it held nothing."""

    path: str
    earlier: Any
    later: Any


def difference(cells: Cells, earlier: int, later: int) -> list[Difference]:
    """Every path whose value is not the same as of both beats, by code point."""
    found: list[Difference] = []
    for path in cells.changed_between(earlier, later):
        before, after = cells.text(path, earlier), cells.text(path, later)
        if before != after:
            found.append(Difference(path, _value(before), _value(after)))
    return found


def _value(text: str | None) -> Any:
    return None if text is None else from_text(text)
