"""Random programs under tight budgets: in memory, on a log with restarts, side by side, and replayed, all the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mainspring.beats import Heartbeat
from mainspring.log import BlockingLog, MemoryEngine
from tests.support.beats_random import NAMES, PLACES, WORDS, enzyme, random_acts, random_path, random_world


class World:
    """A random program, its rules, and what reaches it from outside before each beat."""

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)
        names = rng.sample(NAMES, 6)
        self.acts = {name: random_acts(rng) for name in names}
        self.model = random_world(rng, names, dependencies=0.15)[1]
        self.rules: dict[str, Any] = {
            "max_attempts": rng.choice([1, 2, 4]),
            "backoff_beats": rng.choice([(1,), (1, 3), (2, 1)]),
            "max_signals_per_beat": rng.choice([2, 5, 100]),
            "max_runs_per_beat": rng.choice([1, 3, 7, 100]),
            "max_emissions_per_enzyme": rng.choice([0, 1, 3, 100]),
            "max_chain_depth": rng.choice([0, 2, 5]),
            "strict": rng.random() < 0.3,
            "inline_chars": rng.choice([4, 4096]),
        }
        self.outside: list[list[tuple[Any, ...]]] = []
        for beat in range(1, 16):
            steps: list[tuple[Any, ...]] = []
            for _ in range(rng.choice([0, 1, 2, 6])):
                pair = random_path(rng, WORDS, 3), rng.choice([None, None, *PLACES])
                steps.append(("signal", *pair, beat + rng.choice([0, 0, 0, 1, 3])))
            if rng.random() < 0.3:
                steps.append(("bind", rng.choice(PLACES), rng.choice(names), rng.choice(["spread", "bind", "cut"])))
            if rng.random() < 0.1:
                steps.append((rng.choice(["pause", "resume"]),))
            self.outside.append(steps)

    def install(self, hb: Heartbeat) -> None:
        for each in self.model.registered:
            hb.register(each.name, each.query, enzyme(self.acts[each.name]), each.match, each.before, each.after)

    def bind(self, hb: Heartbeat) -> None:
        for path, name, kind in self.model.records:
            hb.unbind(path, name) if kind == "cut" else hb.bind(path, name, propagate=kind == "spread")

    def before(self, hb: Heartbeat) -> None:
        for step in self.outside[hb.next_beat - 1]:
            match step:
                case ("signal", signal, target, beat):
                    hb.signal(signal, target, beat)
                case ("bind", path, name, "cut"):
                    hb.unbind(path, name)
                case ("bind", path, name, kind):
                    hb.bind(path, name, propagate=kind == "spread")
                case ("pause",):
                    hb.pause()
                case ("resume",):
                    hb.resume()

    def tell(self, hb: Heartbeat, until: int) -> None:
        while hb.next_beat <= until:
            self.before(hb)
            hb.beat()


def journals(hb: Heartbeat) -> list[bytes]:
    return [hb.journal(beat) for beat in range(1, hb.next_beat)]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_however_it_is_run_the_bytes_are_the_same(block: int) -> None:
    for seed in range(20):
        world = World(f"{block} {seed}")
        rng = random.Random(f"run {block} {seed}")
        plain = Heartbeat(**world.rules)
        world.install(plain)
        world.bind(plain)
        world.tell(plain, 15)
        first = rng.randint(1, 15)
        assert plain.replay().identical, world.rules
        assert plain.replay(first, rng.randint(first, 15)).identical, (world.rules, first)

        threads = Heartbeat(parallel="threads", workers=2, **world.rules)
        world.install(threads)
        world.bind(threads)
        world.tell(threads, 15)
        threads.close()
        assert journals(threads) == journals(plain)

        engine = MemoryEngine()
        short_memory = MemoryEngine()
        until = 0
        while until < 15:
            with BlockingLog(engine) as log:
                hb = Heartbeat(log=log, **world.rules)
                world.install(hb)
                if until == 0:
                    world.bind(hb)
                until = min(15, until + rng.randint(1, 6))
                world.tell(hb, until)
                if rng.random() < 0.3:
                    hb.flush()
            with BlockingLog(short_memory) as log:
                short = Heartbeat(log=log, retain_beats=3, **world.rules)
                world.install(short)
                if short.next_beat == 1:
                    world.bind(short)
                world.tell(short, until)
                assert short.digest == hb.digest
                assert short.replay().identical
                short.fork(until - 1, f"at-{until}")
                other = Heartbeat(log=log, line=f"at-{until}", retain_beats=3, **world.rules)
                world.install(other)
                world.tell(other, until)
                assert other.digest == short.digest
        with BlockingLog(engine) as log:
            hb = Heartbeat(log=log, **world.rules)
            world.install(hb)
            assert journals(hb) == journals(plain)
            assert hb.replay(first).identical
            assert {path: hb.read(path) for path in hb.paths()} == {path: plain.read(path) for path in plain.paths()}
            at = rng.randint(1, 14)
            hb.fork(at, "other")
            other = Heartbeat(log=log, line="other", **world.rules)
            world.install(other)
            assert journals(other) == journals(plain)[:at]
            assert other.replay().identical
            world.tell(other, 15)
            assert journals(other) == journals(plain), "the same world goes on in the same way"
