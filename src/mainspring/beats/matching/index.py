"""An index of queries: finds what matches a signal without looking at what does not.

Queries share a trie over their segments. A signal walks it with a set of nodes, one step per segment, so that `**`
never backtracks: the work depends on the signal's length and on how many branches really fit, not on how many queries
are registered. Whole-segment wildcards are one branch each. Patterns inside a segment are found by the literal text
before their first and after their last `*`, which is a dictionary look-up per length in use; only patterns that share
both ends are compared one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mainspring.beats.matching.path import MANY, ONE, Segments

T = TypeVar("T")


def fits(pattern: list[str], segment: str) -> bool:
    """Whether a segment matches a pattern split at its stars: ends first, then the middles from left to right."""
    head, *middles, tail = pattern
    if len(segment) < len(head) + len(tail) or not (segment.startswith(head) and segment.endswith(tail)):
        return False
    at, end = len(head), len(segment) - len(tail)
    for middle in middles:
        found = segment.find(middle, at, end)
        if found < 0:
            return False
        at = found + len(middle)
    return True


class _Node(Generic[T]):
    __slots__ = ("exact", "globs", "literal", "loops", "many", "one", "prefix")

    def __init__(self, *, loops: bool = False) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.one: _Node[T] | None = None
        self.many: _Node[T] | None = None
        self.globs: _Globs[T] | None = None
        self.exact: list[T] = []
        self.prefix: list[T] = []
        self.loops = loops  # behind `**`: stays where it is whatever segment comes

    def child(self, segment: str) -> _Node[T]:
        """The node behind a segment, made when it is new."""
        if segment == MANY:
            if self.loops:
                return self  # two `**` in a row say no more than one
            self.many = self.many or _Node(loops=True)
            return self.many
        if segment == ONE:
            self.one = self.one or _Node()
            return self.one
        if "*" in segment:
            self.globs = self.globs or _Globs()
            return self.globs.child(segment)
        found = self.literal.get(segment)
        if found is None:
            found = self.literal[segment] = _Node()
        return found


class _Globs(Generic[T]):
    """The patterns below one node, by the literal text at their ends."""

    __slots__ = ("by_head", "head_lengths")

    def __init__(self) -> None:
        self.by_head: dict[str, dict[str, dict[str, tuple[list[str], _Node[T]]]]] = {}
        self.head_lengths: list[int] = []

    def child(self, segment: str) -> _Node[T]:
        pattern = segment.split("*")
        head, tail = pattern[0], pattern[-1]
        if head not in self.by_head:
            self.by_head[head] = {}
            self.head_lengths = sorted({*self.head_lengths, len(head)})
        same_ends = self.by_head[head].setdefault(tail, {})
        if segment not in same_ends:
            same_ends[segment] = (pattern, _Node())
        return same_ends[segment][1]

    def step(self, segment: str) -> Iterator[_Node[T]]:
        for head_length in self.head_lengths:
            if head_length > len(segment):
                return
            by_tail = self.by_head.get(segment[:head_length])
            if by_tail is None:
                continue
            room = len(segment) - head_length
            if len(by_tail) <= room:
                tails = [tail for tail in by_tail if segment.endswith(tail)]
            else:
                tails = [tail for n in range(room + 1) if (tail := segment[len(segment) - n :]) in by_tail]
            for tail in tails:
                for pattern, node in by_tail[tail].values():
                    if fits(pattern, segment):
                        yield node


class QueryIndex(Generic[T]):
    """Queries and what stands under each. `find` gives every entry once."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def _node(self, query: Segments) -> _Node[T]:
        node = self._root
        for segment in query:
            node = node.child(segment)
        return node

    def add(self, query: Segments, entry: T, *, prefix: bool) -> None:
        node = self._node(query)
        # The empty query fits every signal whatever its policy.
        (node.prefix if prefix or not query else node.exact).append(entry)

    def remove(self, query: Segments, entry: T, *, prefix: bool) -> None:
        node = self._node(query)
        (node.prefix if prefix or not query else node.exact).remove(entry)

    def find(self, signal: Segments) -> list[T]:
        """Every entry whose query matches the signal, in no promised order."""
        active = _with_many([self._root])
        passed: set[int] = set()  # nodes behind `**` are met again at every segment
        found: list[T] = []
        for segment in signal:
            reached: dict[int, _Node[T]] = {}
            for node in active:
                if node.prefix and id(node) not in passed:
                    passed.add(id(node))
                    found.extend(node.prefix)
                if node.loops:
                    reached[id(node)] = node
                literal = node.literal.get(segment)
                if literal is not None:
                    reached[id(literal)] = literal
                if node.one is not None:
                    reached[id(node.one)] = node.one
                if node.globs is not None:
                    for child in node.globs.step(segment):
                        reached[id(child)] = child
            if not reached:
                return found
            active = _with_many(list(reached.values()))
        for node in active:
            found.extend(node.exact)
            if node.prefix and id(node) not in passed:
                found.extend(node.prefix)
        return found


def _with_many(nodes: list[_Node[T]]) -> list[_Node[T]]:
    """The nodes and, since `**` may stand for nothing, the one behind each of their `**`."""
    behind: list[_Node[T]] | None = None
    for node in nodes:
        if node.many is not None:
            behind = behind or []
            behind.append(node.many)
    if behind is None:
        return nodes
    seen = {id(node) for node in nodes}
    return nodes + [node for node in behind if id(node) not in seen]
