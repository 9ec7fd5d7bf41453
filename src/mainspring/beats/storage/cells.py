"""The committed state: every path's versions, and the content store beside it.

A version counts from a beat on: what beat N writes has version N+1, so "as of N" is what enzymes read in N. Writing
what a path already holds adds no version. Old versions go when no readable beat can see them, and content goes when
nothing kept refers to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from mainspring.beats.storage.values import content_hash, mentioned


class Held(msgspec.Struct, frozen=True, gc=False):
    """A stored value: its text, or the hash of a text in the content store; and what the text refers to."""

    text: str | None
    content: str | None = None
    mentions: frozenset[str] = frozenset()

    def hashes(self) -> Iterable[str]:
        return (self.content, *self.mentions) if self.content is not None else self.mentions


class Content:
    """Long texts by hash, counted by who refers to them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._references: dict[str, int] = {}
        self._suspects: set[str] = set()  # may have nobody left who refers to them

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, sha256: str) -> str | None:
        return self._texts.get(sha256)

    def put(self, sha256: str, text: str) -> bool:
        """Keep a text; False when it was there."""
        if sha256 in self._texts:
            return False
        self._texts[sha256] = text
        self._suspects.add(sha256)
        return True

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
        """Drop what nobody refers to; the hashes dropped, in order."""
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

    def __init__(self, content: Content, inline_chars: int) -> None:
        self._content = content
        self.inline_chars = inline_chars
        self._versions: dict[str, tuple[list[int], list[Held | None]]] = {}
        self._changed: dict[int, list[str]] = {}  # paths by the beat their version counts from

    def hold(self, text: str) -> Held:
        """How a text is kept: itself, or the hash under which it belongs in the content store."""
        if len(text) > self.inline_chars:
            return Held(None, content_hash(text), mentioned(text))
        return Held(text, None, mentioned(text))

    def text(self, path: str, at: int) -> str | None:
        """The canonical text of a path as of a beat; None when it holds nothing."""
        versions = self._versions.get(path)
        if versions is None:
            return None
        place = bisect_right(versions[0], at)
        held = versions[1][place - 1] if place else None
        if held is None:
            return None
        return held.text if held.content is None else self._content.get(held.content)

    def newest(self, path: str) -> int:
        """The beat from which the latest version of a path counts; 0 when there is none."""
        versions = self._versions.get(path)
        return versions[0][-1] if versions is not None else 0

    def latest(self, path: str) -> Held | None:
        versions = self._versions.get(path)
        return versions[1][-1] if versions is not None else None

    def put(self, path: str, since: int, held: Held | None) -> None:
        """Make a version that counts from a beat on; None says that the path holds nothing."""
        beats, versions = self._versions.setdefault(path, ([], []))
        beats.append(since)
        versions.append(held)
        self._changed.setdefault(since, []).append(path)
        if held is not None:
            self._content.refer(held.hashes())

    def _release(self, held: Held | None) -> None:
        if held is not None:
            self._content.release(held.hashes())

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
                for beat, held in zip(beats[:gone], versions[:gone], strict=True):
                    self._release(held)
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

    def versions(self, up_to: int) -> list[tuple[str, int, Held | None]]:
        """Every version that counts from `up_to` at the latest, by path and beat."""
        return [
            (path, beat, held)
            for path in sorted(self._versions)
            for beat, held in zip(*self._versions[path], strict=True)
            if beat <= up_to
        ]
