"""What is kept: the content store, retention, and digests that outlive their beats."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from mainspring.beats import Heartbeat
from mainspring.beats.errors import UnknownBeat
from mainspring.log import BlockingLog, MemoryEngine
from tests.support import beats_story as story


def keys(log: BlockingLog, kind: str) -> list[str]:
    return [record.key for record in log.scan("beats", f"main/{kind}/")]


def test_long_values_are_kept_once_under_their_hash() -> None:
    engine = MemoryEngine()
    long = {"text": "x" * 5000}
    canonical = '{"text":"' + "x" * 5000 + '"}'
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("a", "/sig/*", lambda signal, target, stage: stage.write(f"/copy{signal}", long))
        for i in range(5):
            hb.signal(f"/sig/{i}")
        report = hb.beat()
        sha256 = hashlib.sha256(canonical.encode()).hexdigest()
        assert keys(log, "cas") == [f"main/cas/{sha256}"]
        assert hb.read(f"/cas/{sha256}") == hb.read("/copy/sig/3") == report.staged[0].value == long
        assert hb.read("/rt/beat/1/stage")[0]["content"] == f"/cas/{sha256}"
        assert len(hb.journal(1)) < 5000, "journals refer to it"
        assert hb.read("/cas/" + "0" * 64) is None
    with BlockingLog(engine) as log:
        assert Heartbeat(log=log).read("/copy/sig/4") == long


def test_content_is_collected_when_no_kept_beat_refers_to_it() -> None:
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log, retain_beats=3, inline_chars=10)

        def work(signal: str | None, target: str | None, stage: Any) -> None:
            stage.write("/now", f"the value of beat {stage.beat}")
            if stage.beat == 1:
                stage.write("/ref", [stage.store("kept as long as somebody names it")])
                stage.store("nobody ever names this one")
            if stage.beat == 8:
                stage.delete("/ref")

        hb.register("work", "/sig", work)
        counts = []
        for _ in range(14):
            hb.signal("/sig")
            hb.beat()
            counts.append(len(keys(log, "cas")))
        assert max(counts) <= 8
        named = hashlib.sha256(b'"kept as long as somebody names it"').hexdigest()
        unnamed = hashlib.sha256(b'"nobody ever names this one"').hexdigest()
        assert hb.read(f"/cas/{named}") is None
        assert hb.read(f"/cas/{unnamed}") is None
        assert hb.read("/now") == "the value of beat 14"
        assert hb.read("/now", at=13) == "the value of beat 12"


def test_content_named_by_a_live_value_stays_past_its_beat() -> None:
    hb = Heartbeat(retain_beats=2)
    paths: list[str] = []

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        paths.append(stage.store({"big": True}))
        stage.write("/ref", {"where": paths[0]})

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    for _ in range(9):
        hb.beat()
    assert hb.read(hb.read("/ref")["where"]) == {"big": True}


@pytest.mark.parametrize("durable", [False, True])
def test_old_beats_go_and_their_digests_stay(durable: bool) -> None:
    plain = Heartbeat(**story.RULES)
    story.install(plain)
    digests = story.tell(plain, 40)
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log if durable else None, retain_beats=5, **story.RULES)
        story.install(hb)
        assert story.tell(hb, 40) == digests, "retention changes no beat"
        for beat in (1, 20, 35):
            assert hb.read(f"/rt/beat/{beat}/digest") == digests[beat - 1]
            assert hb.read(f"/rt/beat/{beat}/agenda") is None
            with pytest.raises(UnknownBeat):
                hb.read("/shared", at=beat)
        for beat in (36, 40):
            assert hb.read(f"/rt/beat/{beat}/agenda") == plain.read(f"/rt/beat/{beat}/agenda")
            assert hb.read("/shared", at=beat) == plain.read("/shared", at=beat)
        assert hb.replay(36).identical
        assert [hb.read(path) for path in plain.paths()] == [plain.read(path) for path in plain.paths()]
        if durable:
            assert len(list(log.scan("journal/beats/main"))) <= 6
            assert len(keys(log, "digest")) == 40
    if durable:
        with BlockingLog(engine) as log:
            hb = Heartbeat(log=log, retain_beats=5, **story.RULES)
            story.install(hb)
            assert hb.read("/rt/beat/1/digest") == digests[0]
            assert hb.replay().identical
            assert hb.beat().digest == plain.beat().digest


class Weighed(MemoryEngine):
    """Notes how many bytes each commit writes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def submit(self, batches: Any, done: Any) -> None:
        values = (operation.value for batch in batches for operation in batch.operations if hasattr(operation, "value"))
        self.bytes.append(sum(map(len, values)))
        super().submit(batches, done)


@pytest.mark.parametrize("retain", [None, 3])
def test_a_backlog_is_stored_once_and_survives_restarts(retain: int | None) -> None:
    engine = Weighed()
    order: list[str] = []
    rules: dict[str, Any] = {"max_signals_per_beat": 100, "retain_beats": retain}
    beats = 0
    while len(order) < 3_100:
        with BlockingLog(engine) as log:
            hb = Heartbeat(log=log, **rules)
            hb.register("a", "/sig/*", lambda signal, target, stage: order.append(signal))
            if not beats:
                for i in range(3_000):
                    hb.signal(f"/sig/{i}")
            for _ in range(7):
                hb.beat()
                beats += 1
                if beats == 9:
                    for i in range(3_000, 3_100):
                        hb.signal(f"/sig/{i}")
    assert order == [f"/sig/{i}" for i in range(3_100)]
    assert max(engine.bytes[1:]) < engine.bytes[0] / 5, "only the first commit writes the backlog"
    with BlockingLog(engine) as log:
        for _ in range(4):
            Heartbeat(log=log, **rules).beat()
        if retain is not None:
            assert keys(log, "queue") == []
            assert keys(log, "left") == []


def test_old_binding_records_are_compacted_at_a_start() -> None:
    engine = MemoryEngine()
    for start in range(3):
        with BlockingLog(engine) as log:
            hb = Heartbeat(log=log, retain_beats=3)

            def flip(signal: str | None, target: str | None, stage: Any, hb: Heartbeat = hb) -> None:
                (hb.bind if stage.beat % 2 else hb.unbind)("/t", "flip")
                hb.bind(f"/p/{stage.beat % 3}", "flip", propagate=stage.beat % 2 == 0)

            hb.register("flip", "/sig", flip)
            if start == 0:
                hb.bind("/always", "flip")
            before = len(keys(log, "bindings"))
            for _ in range(90):
                hb.signal("/sig")
                hb.beat()
            assert before < 190
            after = len(keys(log, "bindings"))
            assert (hb.resolve(None, "/t/x"), hb.resolve(None, "/always")) == ([], ["flip"])
    assert after < 150
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log, retain_beats=3)
        hb.register("flip", "/sig", lambda *_: None)
        assert (hb.resolve(None, "/t/x"), hb.resolve(None, "/always/x")) == ([], ["flip"])
        hb.bind("/t", "flip")
        hb.beat()
        assert len(keys(log, "bindings")) < 20
        assert Heartbeat(log=log).state.bindings.names("/t/x") == {"flip"}


def test_writing_what_is_there_adds_no_version() -> None:
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", [1, {"a": 2.0}]))
        for _ in range(5):
            hb.signal("/sig")
            hb.beat()
        assert len(keys(log, "cell")) == 1


def test_the_tree_shows_what_waits_and_only_what_was_there_as_of_a_beat() -> None:
    hb = Heartbeat()
    seen: dict[str, Any] = {}

    def look(signal: str | None, target: str | None, stage: Any) -> None:
        for path in ("/rt/beat/1/agenda", "/rt/beat/2/inbox", "/rt/beat/2/agenda", "/rt/beat/3/inbox", "/rt/dead/1"):
            seen[path] = stage.read(path)

    hb.register("look", "/look", look)
    hb.signal("/nobody")
    hb.beat()
    hb.signal("/look")
    hb.signal("/later", beat=3)
    assert [entry["signal"] for entry in hb.read("/rt/beat/3/inbox")] == ["/later"]
    assert hb.read("/rt/beat/99/inbox") is None
    hb.beat()
    assert seen["/rt/beat/1/agenda"] == []
    assert [entry["signal"] for entry in seen["/rt/beat/2/inbox"]] == ["/look"]
    assert (seen["/rt/beat/2/agenda"], seen["/rt/beat/3/inbox"], seen["/rt/dead/1"]) == (None, None, [])
    assert hb.read("/rt/beat/2/agenda", at=2) is None
    whole = hb.read("/rt/beat/2")
    assert (whole["beat"], whole["previous"]) == (2, hb.read("/rt/beat/1/digest"))
    for odd in ("/rt/beat/x/inbox", "/rt/beat/1/nothing", "/rt/other", "/rt/beat/01"):
        assert hb.read(odd) is None
    assert hb.replay().identical
