"""Random enzymes, bindings, signals and acts, for the engine and for its model alike."""

from __future__ import annotations

import random
from typing import Any

from mainspring.beats import Heartbeat
from tests.support.beats_model import Model, Registered

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
