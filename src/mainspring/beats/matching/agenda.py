"""From a pair to the order its enzymes run in.

Candidates come first: with a target, the names bound to it whose query matches the signal; without one, every match
(broadcast). A target that nothing is bound to runs nothing: a silent broadcast would make a binding that does not
propagate look as if it did.

Then the order: higher specificity, name by code point, registration index. All candidates of a pair match in the same
way (by target and signal, by target, or by signal), so the way decides nothing. Dependencies among the candidates win
over all of it (Kahn's algorithm, the ready ones in a priority queue). A cycle leaves the pair without an agenda and
says which names form it: it depends on which enzymes match together, so it cannot be refused at registration.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from mainspring.beats.matching.bindings import Bindings
from mainspring.beats.matching.path import segments_of
from mainspring.beats.matching.registry import Registration, Registry

# Up to this many records or queries, asking each bound name is cheaper than asking the index for every match.
_FEW: Final = 32

Pair = tuple[str | None, str | None]


class Resolved(NamedTuple):
    """The enzymes of a pair in order, the cycles that emptied it, and who waits for whom."""

    order: tuple[Registration, ...]
    cycles: tuple[tuple[str, ...], ...] = ()
    waits_for: dict[str, set[str]] | None = None


class Resolver:
    """Resolves pairs against a registry and bindings that stand still while it does."""

    def __init__(self, registry: Registry, bindings: Bindings) -> None:
        self.registry = registry
        self._bindings = bindings

    def resolve(self, signal: str | None, target: str | None) -> Resolved:
        candidates = self._candidates(signal, target)
        if not candidates:
            return Resolved(())
        if len(candidates) == 1:
            (entry,) = candidates
            if entry.name in entry.before or entry.name in entry.after:
                return Resolved((), ((entry.name,),))
            return Resolved((entry,))
        if any(entry.before or entry.after for entry in candidates):
            return in_dependency_order(candidates)
        return Resolved(tuple(sorted(candidates, key=_priority)))

    def _candidates(self, signal: str | None, target: str | None) -> list[Registration]:
        if target is None:
            return [] if signal is None else list(self.registry.matching(segments_of(signal)).values())
        if signal is None:
            named = (self.registry.named(name) for name in self._bindings.names(target))
            return [entries[0] for entries in named if entries]
        segments = segments_of(signal)
        if self._bindings.weight(target) <= _FEW:
            bound = [self.registry.named(name) for name in self._bindings.names(target)]
            if sum(map(len, bound)) <= _FEW:
                return [
                    entry
                    for entries in bound
                    if (entry := next((entry for entry in entries if entry.fits(segments)), None)) is not None
                ]
        binds = self._bindings.binds
        return [entry for name, entry in self.registry.matching(segments).items() if binds(target, name)]


def _priority(entry: Registration) -> tuple[int, str, int]:
    """The smallest runs first."""
    return -entry.specificity, entry.name, entry.index


def in_dependency_order(candidates: list[Registration]) -> Resolved:
    """Kahn's algorithm over the edges among these candidates; names that are not here are ignored."""
    here = {entry.name: entry for entry in candidates}
    waits_for: dict[str, set[str]] = {name: set() for name in here}
    for name, entry in here.items():
        waits_for[name].update(other for other in entry.after if other in here)
        for other in entry.before:
            if other in here:
                waits_for[other].add(name)
    releases: dict[str, list[str]] = {name: [] for name in here}
    for name, others in waits_for.items():
        for other in others:
            releases[other].append(name)
    open_edges = {name: len(others) for name, others in waits_for.items()}
    ready = [_priority(here[name]) for name, count in open_edges.items() if count == 0]
    heapq.heapify(ready)
    order: list[Registration] = []
    while ready:
        _, ran, _ = heapq.heappop(ready)
        order.append(here[ran])
        for name in releases[ran]:
            open_edges[name] -= 1
            if open_edges[name] == 0:
                heapq.heappush(ready, _priority(here[name]))
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
