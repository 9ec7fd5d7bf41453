"""Which enzymes a target is bound to: records on paths, inherited downwards, cancelled by tombstones.

Each path keeps the latest record per name. A target takes every live record of its own path and, from the paths above,
those that propagate; the nearest tombstone hides what stands above it, not what was bound below it. Records are kept by
path, so looking a target up costs its depth and what is bound along it, however many bindings there are elsewhere.
Local records are kept apart from those that reach further down: a path with many of them costs its children nothing.
"""

from __future__ import annotations

from typing import Final

from mainspring.beats.matching.path import ancestors

LOCAL: Final = "local"
SPREAD: Final = "spread"
CUT: Final = "cut"


class Bindings:
    """The binding records in force. The heartbeat changes them between beats only."""

    def __init__(self) -> None:
        self._local: dict[str, dict[str, str]] = {}  # seen by the path itself
        self._reaching: dict[str, dict[str, str]] = {}  # seen by the path and all below: SPREAD or CUT

    def put(self, path: str, name: str, kind: str) -> bool:
        """Make a record the latest of its path and name; False when it was already."""
        if self.get(path, name) == kind:
            return False
        into, other = (self._local, self._reaching) if kind == LOCAL else (self._reaching, self._local)
        replaced = other.get(path)
        if replaced is not None and replaced.pop(name, None) is not None and not replaced:
            del other[path]
        into.setdefault(path, {})[name] = kind
        return True

    def get(self, path: str, name: str) -> str | None:
        found = self._local.get(path, {}).get(name)
        return found if found is not None else self._reaching.get(path, {}).get(name)

    def weight(self, target: str) -> int:
        """How many records `names` would look at."""
        reaching = self._reaching
        return len(self._local.get(target, ())) + sum(len(reaching.get(path, ())) for path in ancestors(target))

    def names(self, target: str) -> set[str]:
        """The names bound to a target."""
        bound = set(self._local.get(target, ()))
        decided = set(bound)
        for path in ancestors(target):
            records = self._reaching.get(path)
            if records:
                bound.update(name for name, kind in records.items() if kind == SPREAD and name not in decided)
                decided.update(records)
        return bound

    def binds(self, target: str, name: str) -> bool:
        """Whether one name is bound to a target."""
        if name in self._local.get(target, ()):
            return True
        for path in ancestors(target):
            kind = self._reaching.get(path, {}).get(name)
            if kind is not None:
                return kind == SPREAD
        return False

    def records(self) -> list[tuple[str, str, str]]:
        """Every record as (path, name, kind), sorted."""
        return sorted(
            (path, name, kind)
            for side in (self._local, self._reaching)
            for path, records in side.items()
            for name, kind in records.items()
        )
