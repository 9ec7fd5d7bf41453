"""How resolving and beating scale, against themselves at another size and against a plain scan and sort.

Prints one JSON object. Every ratio compares two things measured in the same run, alternately, and is the median of
several rounds, so that a busy machine slows both sides. Goals stand beside the ratios; no time is ever asserted.

- `queries`: resolving a signal that five enzymes match, among 100,000 registered queries against 100. `literal`: the
  others differ in a segment; `wildcards`: they hold `*` and `**`; `patterns`: they share the segment's place with
  patterns like `img17*`; `bound`: the pair has a target that binds the five.
- `bindings`: resolving a pair with 1,000,000 bindings against 1,000. `elsewhere`: the others are on other paths;
  `above`: they are on the target's own ancestors, for names this signal does not match.
- `naive`: the same resolve by matching every query in turn and sorting, for 1,000 and 10,000 queries.
- `duplicates`: what a second, equal impulse costs a beat, against the first.
- `beats`: signals per second through whole beats (one enzyme each, one write), and empty beats per second: in memory,
  on the log in memory, and on SQLite with fsync. `commits` counts what a beat of 10,000 signals wrote.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import Figures, compare, options, report
from mainspring.beats import Heartbeat, Stage
from mainspring.beats.matching.path import query_segments, segments_of, specificity
from mainspring.beats.matching.registry import matches
from mainspring.log import BlockingLog, Engine, MemoryEngine, SqliteEngine

ROUNDS = 7
RESOLVES = 2_000
SIGNAL = "/signals/image/thumbnail"
TARGET = "/env/fs/projects/p1/img"
MANY, FEW = 100_000, 100
Measure = Callable[[], float]


def idle(signal: str | None, target: str | None, stage: Stage) -> None:
    """Does nothing."""


def timed(operation: Callable[[], object], count: int) -> float:
    """Microseconds per operation."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(count):
        operation()
    taken = time.perf_counter() - start
    gc.enable()
    return taken / count * 1e6


def resolving(hb: Heartbeat, target: str | None = None) -> Measure:
    return lambda: timed(lambda: hb.resolve(SIGNAL, target), RESOLVES)


# --- queries ----------------------------------------------------------------------------------------------------------

OTHERS: dict[str, Callable[[int], str]] = {
    "literal": lambda i: f"/signals/other{i}/thumbnail",
    "wildcards": lambda i: (f"/*/other{i}/**", f"/**/other{i}", f"/signals/*/other{i}")[i % 3],
    "patterns": lambda i: (f"/signals/image{i}*", f"/signals/*{i}image/thumbnail", f"/signals/i{i}*e/*")[i % 3],
}


def with_queries(count: int, other: Callable[[int], str]) -> Heartbeat:
    hb = Heartbeat()
    for i in range(count - 5):
        hb.register(f"other{i}", other(i), idle)
    for i, query in enumerate(("/signals/image/thumbnail", "/signals/*/thumbnail", "/signals/**", "/**", "/signals")):
        hb.register(f"match{i}", query, idle, match="prefix" if query == "/signals" else "exact")
        hb.bind("/env/fs/projects", f"match{i}")
    return hb


def queries() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, other in OTHERS.items():
        few, many = with_queries(FEW, other), with_queries(MANY, other)
        assert few.resolve(SIGNAL) == many.resolve(SIGNAL)
        found[name] = compare(resolving(few), resolving(many), ("among_100_us", "among_100000_us"), ROUNDS, digits=3)
        if name == "literal":
            sizes = resolving(few, TARGET), resolving(many, TARGET)
            found["bound"] = compare(*sizes, ("among_100_us", "among_100000_us"), ROUNDS, digits=3)
    return found


# --- bindings ---------------------------------------------------------------------------------------------------------


def with_bindings(count: int, place: Callable[[int], tuple[str, str]]) -> Heartbeat:
    hb = with_queries(FEW, OTHERS["literal"])
    for i in range(count):
        path, name = place(i)
        hb.bind(path, name, propagate=i % 2 == 0)
    return hb


def bindings() -> dict[str, Any]:
    places: dict[str, Callable[[int], tuple[str, str]]] = {
        "elsewhere": lambda i: (f"/env/fs/projects/p{i % 1000}/dir{i // 1000}", f"match{i % 5}"),
        "above": lambda i: (("/env/fs/projects/p1", "/env/fs", "/")[i % 3], f"unmatched{i}"),
    }
    found: dict[str, Any] = {}
    for name, place in places.items():
        few, many = with_bindings(1_000, place), with_bindings(1_000_000, place)
        assert few.resolve(SIGNAL, TARGET) == many.resolve(SIGNAL, TARGET)
        sizes = resolving(few, TARGET), resolving(many, TARGET)
        found[name] = compare(*sizes, ("among_1000_us", "among_1000000_us"), ROUNDS, digits=3)
    return found


# --- a plain reading of the rules -------------------------------------------------------------------------------------


def naive(count: int) -> dict[str, float]:
    hb = with_queries(count, OTHERS["literal"])
    registered = [(f"other{i}", query_segments(OTHERS["literal"](i)), False) for i in range(count - 5)] + [
        (f"match{i}", query_segments(query), query == "/signals")
        for i, query in enumerate(
            ("/signals/image/thumbnail", "/signals/*/thumbnail", "/signals/**", "/**", "/signals")
        )
    ]

    def scan_and_sort() -> list[str]:
        signal = segments_of(SIGNAL)
        found = [
            (-specificity(query), name) for name, query, prefix in registered if matches(query, signal, prefix=prefix)
        ]
        return [name for _, name in sorted(found)]

    assert scan_and_sort() == hb.resolve(SIGNAL)
    return compare(resolving(hb), lambda: timed(scan_and_sort, 20), ("index_us", "scan_and_sort_us"), ROUNDS, digits=3)


# --- beats ------------------------------------------------------------------------------------------------------------


def duplicates() -> dict[str, float]:
    def beat_of(signals: list[str]) -> float:
        hb = Heartbeat()
        hb.register("a", "/signals/**", idle)
        for signal in signals:
            hb.signal(signal)
        return timed(hb.beat, 1) / len(signals)

    distinct = [f"/signals/image/{i}" for i in range(5_000)]
    return compare(
        lambda: beat_of(["/signals/image"] * 5_000),
        lambda: beat_of(distinct),
        ("duplicate_us", "first_us"),
        ROUNDS,
        digits=3,
    )


class Counted(MemoryEngine):
    """The log in memory, counting its commits."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    def submit(self, batches: Any, done: Any) -> None:
        self.commits += 1
        super().submit(batches, done)


def write(signal: str | None, target: str | None, stage: Stage) -> None:
    stage.write(f"/out{signal}", stage.beat)


def beats() -> dict[str, Any]:
    rates = {"memory": _rates(None), "log_in_memory": _rates(Counted())}
    with tempfile.TemporaryDirectory() as folder:
        rates["sqlite_fsync"] = _rates(SqliteEngine(Path(folder) / "log.sqlite3"))
    rates["commits_of_a_beat_of_10000_signals"] = {"counted": _commits(), "goal": 1}
    return rates


def _rates(engine: Engine | None) -> dict[str, float]:
    log = BlockingLog(engine) if engine is not None else None
    hb = Heartbeat(log=log, retain_beats=10)
    hb.register("write", "/signals/*", write)

    def full_beat(count: int) -> float:
        for i in range(count):
            hb.signal(f"/signals/{i}")
        return timed(hb.beat, 1) / count

    full = statistics.median(full_beat(10_000) for _ in range(3))
    small = statistics.median(full_beat(100) for _ in range(5))
    empty = statistics.median(timed(hb.beat, 50) for _ in range(3))
    if log is not None:
        log.close()
    return {
        "signals_per_s_in_beats_of_10000": round(1e6 / full),
        "signals_per_s_in_beats_of_100": round(1e6 / small),
        "empty_beats_per_s": round(1e6 / empty),
    }


def _commits() -> int:
    engine = Counted()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("write", "/signals/*", write)
        for i in range(10_000):
            hb.signal(f"/signals/{i}")
        hb.beat()
    return engine.commits


def main() -> None:
    global ROUNDS
    if options(__doc__).quick:
        ROUNDS = 1
    results: Figures = {
        "queries": {**queries(), "goal": "at most 2"},
        "bindings": {**bindings(), "goal": "at most 2"},
        "naive": {"1000": naive(1_000), "10000": naive(10_000)},
        "duplicates": duplicates(),
        "beats": beats(),
    }
    report(
        results,
        fsync="sqlite_fsync only: WAL, synchronous=FULL",
        payload="one whole number per write",
        journal="every fact, SHA-256 chained, in all rates",
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    main()
