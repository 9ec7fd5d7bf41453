"""The committed state: values in one canonical spelling, the versions of every path, and the content store.

What an enzyme stores is kept as text, not as an object: the text is the copy that nothing else can change, its bytes go
into digests, and equal values have equal text in every process and Python version (keys sorted by code point, no
spaces, floats as the shortest text that reads back the same). Long texts are kept once, under their SHA-256, in the
content store; cells and journals hold a reference.

A version counts from a beat on: what beat N writes has version N+1, so "as of N" is what enzymes read in N. Writing
what a path already holds adds no version. Old versions go when no readable beat can see them, and content goes when
nothing kept refers to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

import msgspec

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


class CellValue(msgspec.Struct, frozen=True, gc=False):
    """A stored value: its text, or the hash of a text in the content store; and what the text refers to."""

    text: str | None
    content: str | None = None
    mentions: frozenset[str] = frozenset()

    def hashes(self) -> Iterable[str]:
        return (self.content, *self.mentions) if self.content is not None else self.mentions


class ContentStore:
    """Long texts by hash, each with the number of references to it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._references: dict[str, int] = {}
        self._suspects: set[str] = set()  # may have no reference left

    def get(self, sha256: str) -> str | None:
        return self._texts.get(sha256)

    def put(self, sha256: str, text: str) -> None:
        if sha256 not in self._texts:
            self._texts[sha256] = text
            self._suspects.add(sha256)

    def refer(self, hashes: Iterable[str]) -> None:
        for sha256 in hashes:
            self._references[sha256] = self._references.get(sha256, 0) + 1

    def release(self, hashes: Iterable[str]) -> None:
        for sha256 in hashes:
            left = self._references.get(sha256, 0) - 1
            if left > 0:
                self._references[sha256] = left
            else:
                self._references.pop(sha256, None)
                self._suspects.add(sha256)

    def sweep(self) -> list[str]:
        """Drop texts without a reference; the hashes dropped, in order."""
        dropped = sorted(
            sha256 for sha256 in self._suspects if sha256 not in self._references and sha256 in self._texts
        )
        self._suspects.clear()
        for sha256 in dropped:
            del self._texts[sha256]
        return dropped

    def texts(self) -> list[tuple[str, str]]:
        return sorted(self._texts.items())


class Cells:
    """Paths and their versions."""

    def __init__(self, content: ContentStore, inline_chars: int) -> None:
        self._content = content
        self.inline_chars = inline_chars
        self._versions: dict[str, tuple[list[int], list[CellValue | None]]] = {}
        self._changed: dict[int, list[str]] = {}  # paths by the beat their version counts from

    def cell_value(self, text: str) -> CellValue:
        """How a text is kept: itself, or the hash under which it belongs in the content store."""
        if len(text) > self.inline_chars:
            return CellValue(None, content_hash(text), mentioned(text))
        return CellValue(text, None, mentioned(text))

    def text(self, path: str, at: int) -> str | None:
        """The canonical text of a path as of a beat; None when it holds nothing."""
        versions = self._versions.get(path)
        if versions is None:
            return None
        place = bisect_right(versions[0], at)
        stored = versions[1][place - 1] if place else None
        if stored is None:
            return None
        return stored.text if stored.content is None else self._content.get(stored.content)

    def newest(self, path: str) -> int:
        """The beat from which the latest version of a path counts; 0 when there is none."""
        versions = self._versions.get(path)
        return versions[0][-1] if versions is not None else 0

    def latest(self, path: str) -> CellValue | None:
        versions = self._versions.get(path)
        return versions[1][-1] if versions is not None else None

    def put(self, path: str, since: int, stored: CellValue | None) -> None:
        """Make a version that counts from a beat on; None says that the path holds nothing."""
        beats, versions = self._versions.setdefault(path, ([], []))
        beats.append(since)
        versions.append(stored)
        self._changed.setdefault(since, []).append(path)
        if stored is not None:
            self._content.refer(stored.hashes())

    def forget_before(self, oldest: int) -> list[tuple[str, int]]:
        """Drop versions no beat from `oldest` on can see; (path, beat) of each, in order."""
        dropped: list[tuple[str, int]] = []
        for since in sorted(beat for beat in self._changed if beat <= oldest):
            for path in self._changed.pop(since):
                if path not in self._versions:
                    continue  # a later change of the same path has taken everything
                beats, versions = self._versions[path]
                place = bisect_right(beats, oldest) - 1
                if place < 0:
                    continue
                gone = place + 1 if versions[place] is None else place
                for beat, stored in zip(beats[:gone], versions[:gone], strict=True):
                    if stored is not None:
                        self._content.release(stored.hashes())
                    dropped.append((path, beat))
                del beats[:gone], versions[:gone]
                if not beats:
                    del self._versions[path]
        return dropped

    def paths(self, prefix: str, at: int) -> list[str]:
        """The paths at or below a prefix that hold something as of a beat, by code point."""
        below = prefix if prefix.endswith("/") else prefix + "/"
        return sorted(
            path
            for path in self._versions
            if (path == prefix or path.startswith(below)) and self.text(path, at) is not None
        )

    def changed_between(self, one: int, other: int) -> list[str]:
        """The paths that got a version after the earlier and by the later of two beats, by code point."""
        first, last = sorted((one, other))
        return sorted({path for since in range(first + 1, last + 1) for path in self._changed.get(since, ())})

    def versions(self, up_to: int) -> list[tuple[str, int, CellValue | None]]:
        """Every version that counts from `up_to` at the latest, by path and beat."""
        return [
            (path, beat, stored)
            for path in sorted(self._versions)
            for beat, stored in zip(*self._versions[path], strict=True)
            if beat <= up_to
        ]
