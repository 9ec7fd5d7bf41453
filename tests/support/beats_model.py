"""A second, much smaller reading of the rules of beats, to compare the engine with.

It shares no code and no idea with the engine: queries are matched by trying every way, candidates are found by looking
at all of them, orders by repeatedly picking the first that may go, and a whole run is plain lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def parts(path: str) -> list[str]:
    return [] if path == "/" else path[1:].split("/")


def glob(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(glob(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and text[0] == pattern[0] and glob(pattern[1:], text[1:])


def match(query: list[str], signal: list[str], prefix: bool) -> bool:
    if not query:
        return prefix or not signal
    if query[0] == "**":
        return any(match(query[1:], signal[i:], prefix) for i in range(len(signal) + 1))
    if not signal:
        return False
    here = query[0] in ("*", "?") or glob(query[0], signal[0])
    return here and match(query[1:], signal[1:], prefix)


@dataclass
class Registered:
    name: str
    query: str
    match: str = "exact"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def fits(self, signal: str) -> bool:
        return self.query == "/" or match(parts(self.query), parts(signal), self.match == "prefix")

    @property
    def score(self) -> int:
        return sum(1 if "*" in part or part == "?" else 2 for part in parts(self.query))


@dataclass
class Model:
    """A registry and a list of binding records, in the order they were made."""

    registered: list[Registered] = field(default_factory=list)
    records: list[tuple[str, str, str]] = field(default_factory=list)  # path, name, bind | spread | cut

    def bound(self, target: str) -> set[str]:
        chain = [target]
        while chain[-1] != "/":
            chain.append(chain[-1].rpartition("/")[0] or "/")
        names = {name for _, name, _ in self.records}
        return {name for name in names if self._is_bound(chain, name)}

    def _is_bound(self, chain: list[str], name: str) -> bool:
        for path in chain:
            latest = [kind for p, n, kind in self.records if (p, n) == (path, name)][-1:]
            if latest == ["cut"]:
                return False
            if latest == ["spread"] or (latest == ["bind"] and path == chain[0]):
                return True
        return False

    def candidates(self, signal: str | None, target: str | None) -> list[Registered]:
        found = self.registered
        if target is not None:
            bound = self.bound(target)
            found = [each for each in found if each.name in bound]
        if signal is not None:
            found = [each for each in found if each.fits(signal)]
        best: dict[str, Registered] = {}
        for each in found:
            if each.name not in best or each.score > best[each.name].score:
                best[each.name] = each
        return list(best.values())

    def resolve(self, signal: str | None, target: str | None) -> list[str]:
        left = {each.name: each for each in self.candidates(signal, target)}
        edges = {(a, b) for a in left for b in left[a].before if b in left}
        edges |= {(b, a) for a in left for b in left[a].after if b in left}
        order: list[str] = []
        while left:
            free = [each for each in left.values() if not any(b == each.name and a in left for a, b in edges)]
            if not free:
                return []
            chosen = min(free, key=lambda each: (-each.score, each.name))
            order.append(chosen.name)
            del left[chosen.name]
        return order


@dataclass
class Play:
    """Whole beats of the model: what each enzyme does is written down beforehand.

    `acts[name]` is a list of steps: ("write", path, value), ("delete", path), ("signal", signal, target, later) and
    ("answer", code or None). Retries wait one beat; nothing is over budget.
    """

    model: Model
    acts: dict[str, list[tuple[Any, ...]]]
    max_attempts: int = 3
    state: dict[str, Any] = field(default_factory=dict)
    queues: dict[int, list[tuple[str | None, str | None, int]]] = field(default_factory=dict)
    beat: int = 1

    def signal(self, signal: str | None, target: str | None, beat: int) -> None:
        self.queues.setdefault(beat, []).append((signal, target, 1))

    def step(self) -> tuple[list[tuple[str | None, str | None, str, str]], list[tuple[str | None, str | None, int]]]:
        agenda: list[tuple[str | None, str | None, str, str]] = []
        ran: set[tuple[Any, ...]] = set()
        outgoing: list[list[Any]] = []
        again: dict[tuple[str | None, str | None], list[Any]] = {}
        emitted: list[tuple[str | None, str | None, int]] = []
        changes: list[tuple[str, Any]] = []
        for signal, target, attempt in self.queues.pop(self.beat, []):
            for name in self.model.resolve(signal, target):
                if (signal, target, name) in ran:
                    agenda.append((signal, target, name, "duplicate"))
                    continue
                ran.add((signal, target, name))
                answer = next((step[1] for step in self.acts[name] if step[0] == "answer"), None)
                result = (
                    {None: "ok", -1: "retry", -2: "fatal"}.get(answer, "failed" if answer < 0 else "ok")
                    if (answer is not None)
                    else "ok"
                )
                agenda.append((signal, target, name, result))
                if result in ("failed", "fatal"):
                    continue
                for step in self.acts[name]:
                    if step[0] == "write":
                        changes.append((step[1], step[2]))
                    elif step[0] == "delete":
                        changes.append((step[1], None))
                    elif step[0] == "signal":
                        lands = self.beat + step[3]
                        emitted.append((step[1], step[2], lands))
                        outgoing.append([lands, (step[1], step[2], 1)])
                if result == "retry":
                    if (signal, target) not in again:
                        again[signal, target] = [0, None]
                        outgoing.append(again[signal, target])
                    entry = again[signal, target]
                    entry[0] = self.beat + 1
                    most = max(attempt, entry[1][2] - 1 if entry[1] else 0)
                    entry[1] = (signal, target, most + 1)
        for lands, impulse in outgoing:
            if impulse[2] <= self.max_attempts:
                self.queues.setdefault(lands, []).append(impulse)
        for path, value in changes:
            if value is None:
                self.state.pop(path, None)
            else:
                self.state[path] = value
        self.beat += 1
        return agenda, emitted
