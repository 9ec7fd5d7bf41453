"""From a pair to the order its enzymes run in.

Candidates come first: with a target, the names bound to it whose query matches the signal; without one, every match
(broadcast). A target nothing is bound to runs nothing, since "only bound names are considered" leaves no room for a
silent broadcast; `fallback_broadcast` brings that back for those who want it, and `dispatch` offers other readings.

Then the order. Dual matches before single ones, higher combined specificity, name by code point, registration index;
dependencies among the candidates win over all of it (Kahn's algorithm, the ready ones in a priority queue). A cycle
leaves the pair without an agenda and says which names form it: it depends on who matches together, so it cannot be
refused at registration.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from mainspring.beats.matching.bindings import Bindings
from mainspring.beats.matching.path import segments_of
from mainspring.beats.matching.registry import Registration, Registry

DISPATCHES: Final = ("target_then_signal", "union", "signal_only", "target_only")
# Up to this many records or queries, asking each bound name is cheaper than asking the index for every match.
_FEW: Final = 32

Pair = tuple[str | None, str | None]
Priority = tuple[int, int, str, int]


class Resolved(NamedTuple):
    """The enzymes of a pair in order, the cycles that emptied it, and who waits for whom."""

    order: tuple[Registration, ...]
    cycles: tuple[tuple[str, ...], ...] = ()
    waits_for: dict[str, set[str]] | None = None


class Resolver:
    """Resolves pairs against a registry and bindings that stand still while it does."""

    def __init__(
        self,
        registry: Registry,
        bindings: Bindings,
        *,
        dispatch: str = "target_then_signal",
        fallback_broadcast: bool = False,
    ) -> None:
        self.registry = registry
        self._bindings = bindings
        self._dispatch = dispatch
        self._fallback_broadcast = fallback_broadcast

    def resolve(self, signal: str | None, target: str | None) -> Resolved:
        candidates = self._candidates(signal, target)
        if not candidates:
            return Resolved(())
        if len(candidates) == 1 or not any(entry.before or entry.after for _, entry in candidates):
            if len(candidates) == 1 and candidates[0][1].name in (*candidates[0][1].before, *candidates[0][1].after):
                return Resolved((), ((candidates[0][1].name,),))
            return Resolved(tuple(entry for _, entry in sorted(candidates, key=_priority)))
        return in_dependency_order(candidates)

    def _candidates(self, signal: str | None, target: str | None) -> list[tuple[Priority, Registration]]:
        dispatch = self._dispatch
        if target is None or dispatch == "signal_only":
            return self._broadcast(signal)
        if dispatch == "target_only" or signal is None:
            candidates = self._bound_only(target)
        elif dispatch == "union":
            candidates = self._union(signal, target)
        else:
            candidates = self._bound_and_matching(signal, target)
        if not candidates and self._fallback_broadcast and not self._bindings.names(target):
            return self._broadcast(signal)
        return candidates

    def _broadcast(self, signal: str | None) -> list[tuple[Priority, Registration]]:
        if signal is None:
            return []
        return [_single(entry) for entry in self.registry.matching(segments_of(signal)).values()]

    def _bound_only(self, target: str) -> list[tuple[Priority, Registration]]:
        named = (self.registry.named(name) for name in self._bindings.names(target))
        return [_single(entries[0]) for entries in named if entries]

    def _bound_and_matching(self, signal: str, target: str) -> list[tuple[Priority, Registration]]:
        segments = segments_of(signal)
        if self._bindings.weight(target) <= _FEW:
            bound = [self.registry.named(name) for name in self._bindings.names(target)]
            if sum(map(len, bound)) <= _FEW:
                return [
                    _dual(entry)
                    for entries in bound
                    if (entry := next((entry for entry in entries if entry.fits(segments)), None)) is not None
                ]
        binds = self._bindings.binds
        return [_dual(entry) for name, entry in self.registry.matching(segments).items() if binds(target, name)]

    def _union(self, signal: str, target: str) -> list[tuple[Priority, Registration]]:
        bound = self._bindings.names(target)
        matching = self.registry.matching(segments_of(signal))
        candidates = [_dual(entry) if name in bound else _single(entry) for name, entry in matching.items()]
        rest = (self.registry.named(name) for name in bound if name not in matching)
        return candidates + [_single(entries[0]) for entries in rest if entries]


def _dual(entry: Registration) -> tuple[Priority, Registration]:
    return (0, -2 * entry.specificity, entry.name, entry.index), entry


def _single(entry: Registration) -> tuple[Priority, Registration]:
    return (1, -entry.specificity, entry.name, entry.index), entry


def _priority(candidate: tuple[Priority, Registration]) -> Priority:
    return candidate[0]


def in_dependency_order(candidates: list[tuple[Priority, Registration]]) -> Resolved:
    """Kahn's algorithm over the edges among these candidates; names that are not here are ignored."""
    here = {entry.name: (priority, entry) for priority, entry in candidates}
    waits_for: dict[str, set[str]] = {name: set() for name in here}
    for name, (_, entry) in here.items():
        waits_for[name].update(other for other in entry.after if other in here)
        for other in entry.before:
            if other in here:
                waits_for[other].add(name)
    releases: dict[str, list[str]] = {name: [] for name in here}
    for name, others in waits_for.items():
        for other in others:
            releases[other].append(name)
    open_edges = {name: len(others) for name, others in waits_for.items()}
    ready = [here[name] for name, count in open_edges.items() if count == 0]
    heapq.heapify(ready)
    order: list[Registration] = []
    while ready:
        _, entry = heapq.heappop(ready)
        order.append(entry)
        for name in releases[entry.name]:
            open_edges[name] -= 1
            if open_edges[name] == 0:
                heapq.heappush(ready, here[name])
    if len(order) < len(here):
        return Resolved((), cycles_in(releases))
    return Resolved(tuple(order), (), waits_for)


def cycles_in(edges: dict[str, list[str]]) -> tuple[tuple[str, ...], ...]:
    """The groups of names that reach each other (Tarjan, without recursion), each and all by code point."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[tuple[str, ...]] = []
    for root in sorted(edges):
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = lowest[root] = len(number)
        path.append(root)
        on_path.add(root)
        while work:
            name, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = lowest[other] = len(number)
                    path.append(other)
                    on_path.add(other)
                    work.append((other, iter(edges[other])))
                    break
                if other in on_path:
                    lowest[name] = min(lowest[name], number[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    group = path[path.index(name) :]
                    del path[path.index(name) :]
                    on_path.difference_update(group)
                    if len(group) > 1 or name in edges[name]:
                        found.append(tuple(sorted(group)))
    return tuple(sorted(found))
