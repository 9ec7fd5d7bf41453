"""Patterns over dotted names: `*` is one segment, `**` any number of them, none included.

The same patterns name topics in the scopes of a token, and agents and groups in a topic's access lists. Wildcards stand
alone between dots: `orders.*.eu` is a pattern, `ord*` is refused, because somebody who writes it into a deny list
must not learn later that it denied nobody.

Matching goes left to right and, where a literal does not fit, back to the last `**` only, which then takes one segment
more. Going further back can never help: whatever an earlier `**` could give up, the later one can take as well. So a
match costs at most segments times pattern, whatever the pattern; trying all ways in turn would double the work with
every `**`.
"""

from __future__ import annotations

from typing import Final

from mainspring.bus.errors import BadFrame
from mainspring.bus.names import DEAD_LETTERS, SYSTEM

ONE: Final = "*"
ANY: Final = "**"


def is_pattern(text: str) -> bool:
    """Whether this is meant for several names; `Pattern` says whether it can be one."""
    return ONE in text


class Pattern:
    """A checked pattern. `text` is what was given."""

    __slots__ = ("_segments", "text")

    def __init__(self, text: str) -> None:
        """Raises BadFrame for what can be no pattern."""
        segments = text.split(".")
        if not text or any(ONE in segment and segment not in (ONE, ANY) for segment in segments):
            raise BadFrame(
                f"{text[:100]!r} is not a pattern",
                remedy="`*` (one segment) and `**` (any number of segments) stand alone between dots, like orders.*",
            )
        self.text: str = text
        self._segments = tuple(segments)

    @property
    def is_literal(self) -> bool:
        return ONE not in self.text

    def matches(self, name: str) -> bool:
        """Whether the whole name fits."""
        pattern, segments = self._segments, name.split(".")
        at = given = 0
        retry, taken = -1, 0  # behind the last `**`, and how far it reaches
        while given < len(segments):
            if at < len(pattern) and pattern[at] == ANY:
                at += 1
                retry, taken = at, given
            elif at < len(pattern) and pattern[at] in (ONE, segments[given]):
                at += 1
                given += 1
            elif retry >= 0:
                taken += 1
                at, given = retry, taken
            else:
                return False
        return all(segment == ANY for segment in pattern[at:])

    def covers_topic(self, name: str) -> bool:
        """Whether who consumes this pattern is given the events of this topic.

        Topics of dead letters and of the system must be named: `orders.*` would be given the dead letters of `orders`,
        and a consumer of everything what its own work makes the node write.
        """
        if name.startswith(SYSTEM) and not self.text.startswith(SYSTEM):
            return False
        if name.endswith(DEAD_LETTERS) and not self.text.endswith(DEAD_LETTERS):
            return False
        return self.matches(name)


class NameSet:
    """Names and patterns together: whether one of them fits a name."""

    __slots__ = ("_names", "_patterns")

    def __init__(self, texts: tuple[str, ...]) -> None:
        patterns = [Pattern(text) for text in texts]
        self._names = frozenset(each.text for each in patterns if each.is_literal)
        self._patterns = tuple(each for each in patterns if not each.is_literal)

    def __contains__(self, name: str) -> bool:
        return name in self._names or any(pattern.matches(name) for pattern in self._patterns)

    def __bool__(self) -> bool:
        return bool(self._names or self._patterns)
