"""The engine against a small, independent model: resolving, and whole runs of beats."""

from __future__ import annotations

import random

import pytest

from mainspring.beats import Heartbeat
from tests.support.beats_model import Play
from tests.support.beats_random import NAMES, PLACES, WORDS, enzyme, random_acts, random_path, random_world


@pytest.mark.parametrize("block", range(10))
def test_the_engine_resolves_like_the_model(block: int) -> None:
    """50,000 resolves on random registries, bindings and pairs."""
    rng = random.Random(f"resolve {block}")
    resolved = 0
    while resolved < 5_000:
        hb, model = random_world(rng, rng.sample(NAMES, 6), dependencies=rng.choice([0, 0.1, 0.3]))
        for _ in range(25):
            signal = rng.choice([None, random_path(rng, WORDS, 4), random_path(rng, WORDS, 4)])
            target = rng.choice([None, *PLACES]) if signal is not None else rng.choice(PLACES)
            assert hb.resolve(signal, target) == model.resolve(signal, target), (block, signal, target, model)
            resolved += 1


@pytest.mark.parametrize("block", range(4))
def test_whole_beats_go_like_the_model(block: int) -> None:
    rng = random.Random(f"beats {block}")
    for _ in range(60):
        names = rng.sample(NAMES, 6)
        acts = {name: random_acts(rng) for name in names}
        _, model = random_world(rng, names, dependencies=0.15)
        hb = Heartbeat(max_attempts=3)
        for each in model.registered:
            hb.register(each.name, each.query, enzyme(acts[each.name]), each.match, each.before, each.after)
        for path, name, kind in model.records:
            hb.unbind(path, name) if kind == "cut" else hb.bind(path, name, propagate=kind == "spread")
        play = Play(model, acts)
        for _ in range(8):
            for _ in range(rng.randint(0, 4)):
                signal, target = random_path(rng, WORDS, 3), rng.choice([None, *PLACES])
                beat = play.beat + rng.choice([0, 0, 1])
                assert hb.signal(signal, target, beat) == beat
                play.signal(signal, target, beat)
            report = hb.beat()
            agenda, emitted = play.step()
            assert [(e.signal, e.target, e.enzyme, e.result) for e in report.agenda] == agenda
            assert [(e.signal, e.target, e.beat) for e in report.emitted] == emitted
            assert {path: hb.read(path) for path in PLACES if hb.read(path) is not None} == play.state
