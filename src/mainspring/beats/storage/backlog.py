"""Signals over the budget, and how they wait in the log without being written again and again.

Impulses are stored once, under the beat they were queued for, and stay there. What a beat has no room for is always the
end of what waited, so two numbers say which impulses are left: a beat, and how many of those stored for it are done. A
backlog of a million signals then costs each beat these two numbers.

Only what is left of pairs whose runs did not suffice is stored anew, for the next beat, before everything else.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.beats.storage.journal import Impulse

Left = tuple[int, int]  # the first beat with impulses left, and how many stored for it are done


class Remainder(msgspec.Struct, frozen=True):
    """What to store of the signals a beat had no room for."""

    front: list[Impulse]  # for the next beat, before everything else
    late: list[Impulse]  # came for this beat and were not stored before
    left: Left | None


class Backlog:
    """How many impulses are stored for which beat, and where the rest begins."""

    def __init__(self) -> None:
        self.left: Left | None = None
        self._stored: dict[int, int] = {}
        self._lefts: dict[int, Left] = {}  # of the beats one may still fork at
        self._floor = 1  # impulses of earlier beats are gone

    def restore(self, left: Left | None, stored: dict[int, int], lefts: dict[int, Left]) -> None:
        self.left, self._stored, self._lefts = left, stored, lefts
        self._floor = min(stored, default=1)

    def remainder(self, beat: int, carried: list[Impulse], overflow: int, unsaved: int) -> Remainder:
        """Of `carried`, the last `overflow` never entered the beat; the last `unsaved` that waited are not stored."""
        split = len(carried) - overflow
        if not overflow:
            return Remainder(carried, [], None)
        late = carried[max(split, len(carried) - unsaved) :]
        first, done = self.left or (beat, 0)
        missing = overflow
        for lands in range(beat, first - 1, -1):
            stored = self._stored.get(lands, 0) + (len(late) if lands == beat else 0)
            waiting = stored - (done if lands == first else 0)
            if missing <= waiting:
                return Remainder(carried[:split], late, (lands, stored - missing))
            missing -= waiting
        return Remainder(carried[: split + missing], late, (first, done))

    def store(self, lands: Iterable[int]) -> None:
        """Count impulses that were stored, each for the beat it waits for."""
        for beat in lands:
            self._stored[beat] = self._stored.get(beat, 0) + 1

    def happened(self, beat: int, left: Left | None) -> None:
        """A beat is over, and this is what it left."""
        self.left = left
        if left is not None:
            self._lefts[beat] = left
        first = left[0] if left is not None else beat + 1
        for old in [lands for lands in self._stored if lands < first]:
            del self._stored[old]

    def forget(self, oldest: int) -> tuple[range, list[int]]:
        """Beats whose impulses nobody needs any more, and beats whose `left` nobody does.

        Lines can be forked from the beat before the oldest on.
        """
        gone = [beat for beat in self._lefts if beat < oldest - 1]
        for beat in gone:
            del self._lefts[beat]
        floor = min([oldest, *(first for first, _ in self._lefts.values())])
        unneeded = range(self._floor, max(self._floor, floor))
        self._floor = max(self._floor, floor)
        return unneeded, gone
