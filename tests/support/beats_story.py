"""One program and its outside world, told by tests in this process and in others.

`python -m beats.story N [LOG-FILE]` runs N beats and prints each digest; with a file they are durable.
`python -m beats.story N light` runs N small beats and prints the digest of all their journals.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from mainspring.beats import RETRY, Heartbeat
from mainspring.log import BlockingLog, SqliteEngine

NAMES = [f"{'xq'[i % 2]}{i * 7 % 23:02}" for i in range(12)]
RULES: dict[str, Any] = {
    "max_attempts": 3,
    "backoff_beats": (1, 2),
    "max_runs_per_beat": 60,
    "max_signals_per_beat": 14,
    "max_emissions_per_enzyme": 12,
    "max_chain_depth": 6,
    "inline_chars": 60,
}


def work_of(i: int, name: str) -> Any:
    def work(signal: str | None, target: str | None, stage: Any) -> int | None:
        seen = stage.read(f"/count/{name}") or 0
        stage.write(f"/count/{name}", seen + 1)
        stage.write("/shared", {"zeta": [i, name], "alpha": seen / 3, "é": signal, "big": name * (i * 3)})
        if i % 3 == 0:
            stage.signal("/sig/next", f"/t/{i % 3}/leaf")
        if i % 5 == 1:
            stage.delete(f"/count/{NAMES[i - 1]}")
        if i == 7:
            stage.write("/kept", [stage.store({"long": "x" * 100 + str(seen % 3)})])
        if i == 6 and seen % 2:
            raise ValueError("no good")
        return {3: RETRY, 9: -2, 10: -7}.get(i) if seen % 3 == 0 else None

    return work


def install(hb: Heartbeat) -> None:
    for i, name in enumerate(NAMES):
        query, match = [("/sig/**", "exact"), ("/sig", "prefix"), ("/sig/*", "exact"), ("/*", "prefix")][i % 4]
        hb.register(name, query, work_of(i, name), match, after=(NAMES[i - 2],) if i % 6 == 5 else ())
        hb.bind("/t" if i % 2 else f"/t/{i % 3}", name, propagate=i % 3 != 0)

    def grow(signal: str | None, target: str | None, stage: Any) -> None:
        hb.bind(f"/grown/{stage.beat}", "grow", propagate=True)
        hb.unbind(f"/grown/{stage.beat - 5}", "grow")
        hb.read("/count/grow")
        stage.signal("/grow", beat=stage.beat + 4)

    hb.register("grow", "/grow", grow)


def outside(hb: Heartbeat, beat: int) -> None:
    """What arrives before a beat."""
    if beat == 1:
        hb.signal("/grow")
    if beat % 3 == 0:
        hb.signal("/sig/go", beat=beat + 2)
    for i in range(beat * 7 % 5):
        hb.signal(f"/sig/{i}", None if i % 2 else f"/t/{i % 3}/leaf")
    if beat % 4 == 0:
        hb.signal(None, "/t/2")
    if beat % 11 == 0:
        for i in range(15):
            hb.signal(f"/sig/burst/{i}")
    if beat % 6 == 5:
        hb.unbind("/t/1", NAMES[beat % 12])
    if beat % 6 == 2:
        hb.bind("/t/1", NAMES[beat % 12], propagate=False)


def tell(hb: Heartbeat, beats: int) -> list[str]:
    """Run until so many beats have happened; the digests of those that happened here."""
    digests: list[str] = []
    while hb.next_beat <= beats:
        outside(hb, hb.next_beat)
        digests.append(hb.beat().digest)
    return digests


def light() -> Heartbeat:
    """A few enzymes, so that ten thousand beats take seconds."""
    hb = Heartbeat(**RULES)
    for i, name in enumerate(NAMES[:4]):
        hb.register(name, "/sig/*", work_of(i, name), after=(NAMES[3],) if i == 1 else ())
        hb.bind("/t", name, propagate=i != 2)
    return hb


def tell_light(hb: Heartbeat, beats: int) -> str:
    """The digest of every journal in a row."""
    everything = hashlib.sha256()
    for beat in range(1, beats + 1):
        if beat % 3 == 0:
            hb.signal(f"/sig/{beat % 7}", "/t/x" if beat % 2 else None)
        hb.beat()
        everything.update(hb.journal(beat))
    return everything.hexdigest()


def main() -> None:
    beats = int(sys.argv[1])
    if sys.argv[2:] == ["light"]:
        print(tell_light(light(), beats))
        return
    if len(sys.argv) == 2:
        hb = Heartbeat(**RULES)
        install(hb)
        print("\n".join(tell(hb, beats)))
        return
    with BlockingLog(SqliteEngine(sys.argv[2])) as log:
        hb = Heartbeat(log=log, **RULES)
        install(hb)
        while hb.next_beat <= beats:
            outside(hb, hb.next_beat)
            print(hb.beat().digest, flush=True)


if __name__ == "__main__":
    main()
