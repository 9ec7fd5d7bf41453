"""The engine against a small, independent model: resolving, and whole runs of beats."""

from __future__ import annotations

import random
from typing import Any

import pytest

from beats.model import Model, Play, Registered
from mainspring.beats import Heartbeat

NAMES = ["a", "b", "c", "d", "ab", "a_b", "A", "Z", "é", "a1", "a10", "a2"]
WORDS = ["sig", "img", "im", "thumb", "x"]
WILD = [*WORDS, "*", "**", "?", "im*", "*g", "i*g", "*m*", "t*u*b"]
PLACES = ["/", "/t", "/t/u", "/t/u/v", "/t/w", "/x"]


def random_path(rng: random.Random, words: list[str], longest: int) -> str:
    return "/" + "/".join(rng.choice(words) for _ in range(rng.randint(0, longest)))


def random_world(rng: random.Random, names: list[str], *, dependencies: float) -> tuple[Heartbeat, Model]:
    hb, model = Heartbeat(), Model()
    for _ in range(rng.randint(1, 12)):
        name = rng.choice(names)
        query = random_path(rng, WILD, 4)
        rules: dict[str, Any] = {"match": rng.choice(["exact", "prefix"])}
        for side in ("before", "after"):
            rules[side] = tuple(rng.sample(names, 1)) if rng.random() < dependencies else ()
        if any(
            (each.name, each.query.replace("?", "*")) == (name, query.replace("?", "*")) for each in model.registered
        ):
            continue
        hb.register(name, query, lambda *_: None, **rules)
        model.registered.append(Registered(name, query, **rules))
    for _ in range(rng.randint(0, 14)):
        record = rng.choice(PLACES), rng.choice(names), rng.choice(["bind", "spread", "spread", "cut"])
        model.records.append(record)
        if record[2] == "cut":
            hb.unbind(record[0], record[1])
        else:
            hb.bind(record[0], record[1], propagate=record[2] == "spread")
    return hb, model


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


def random_acts(rng: random.Random) -> list[tuple[Any, ...]]:
    acts: list[tuple[Any, ...]] = []
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(["write", "write", "delete", "signal"])
        if kind == "write":
            acts.append(("write", rng.choice(PLACES), rng.choice([1, "two", [3], {"four": 4.5}])))
        elif kind == "delete":
            acts.append(("delete", rng.choice(PLACES)))
        elif rng.random() < 0.5:
            acts.append(("signal", random_path(rng, WORDS, 3), rng.choice([None, *PLACES]), rng.choice([1, 1, 2])))
    if rng.random() < 0.3:
        acts.append(("answer", rng.choice([0, 5, -1, -1, -2, -7])))
    return acts


def enzyme(acts: list[tuple[Any, ...]]) -> Any:
    def function(signal: str | None, target: str | None, stage: Any) -> Any:
        answer = None
        for step in acts:
            match step:
                case ("write", path, value):
                    stage.write(path, value)
                case ("delete", path):
                    stage.delete(path)
                case ("signal", what, where, later):
                    stage.signal(what, where, stage.beat + later)
                case ("answer", code):
                    answer = code
        return answer

    return function


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
