"""What makes beats happen: intervals without bursts, work that arrives, topics that feed them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring.beats import FATAL, RETRY, Driver, Heartbeat, Taken, TopicInlet
from mainspring.beats.errors import InvalidImpulse
from mainspring.errors import SettingError
from mainspring.log import Append, Batch, BlockingLog, Log, LogUnavailable, MemoryEngine
from mainspring.loop import Loop, VirtualClock


def driven(**options: Any) -> tuple[Heartbeat, Loop, Driver, list[int]]:
    hb, loop = Heartbeat(), Loop(VirtualClock())
    seen: list[int] = []
    driver = Driver(hb, loop, on_report=lambda _: seen.append(loop.clock.now_ms()), **options)
    driver.start()
    return hb, loop, driver, seen


def test_an_interval_beats_on_its_grid() -> None:
    _, loop, _, seen = driven(interval_ms=100, on_work=False)
    loop.advance(350)
    assert seen == [100, 200, 300]


def test_time_that_passed_is_left_out_instead_of_caught_up() -> None:
    hb, loop, _, seen = driven(interval_ms=100, on_work=False)
    clock = loop.clock
    assert isinstance(clock, VirtualClock)

    def slow(signal: str | None, target: str | None, stage: Any) -> None:
        clock.advance(570)

    hb.register("slow", "/sig", slow)
    hb.signal("/sig")
    loop.advance(1000)
    assert seen[0] == 670, "the first beat began at 100 and took 570"
    assert len(seen) == len(set(seen)), "no burst"
    assert all(instant % 100 == 0 for instant in seen[2:])


def test_work_is_done_as_it_arrives_and_nothing_spins() -> None:
    hb, loop, _, seen = driven()
    hb.register("chain", "/sig", lambda signal, target, stage: stage.signal("/end"))
    hb.register("end", "/end", lambda signal, target, stage: stage.write("/done", stage.beat))
    loop.run_until_idle()
    start = len(seen)
    hb.signal("/sig")
    loop.run_until_idle()
    assert hb.read("/done") is not None
    assert len(seen) - start == 2
    loop.advance(100_000)
    assert len(seen) - start == 2, "no work, no beat"


def test_back_off_in_beats_takes_time_when_only_work_drives() -> None:
    hb = Heartbeat(max_attempts=3, backoff_beats=(1, 4))
    loop = Loop(VirtualClock())
    at: list[int] = []
    hb.register("again", "/sig", lambda *_: at.append(loop.clock.now_ms()) or RETRY)
    Driver(hb, loop, pace_ms=50).start()
    hb.signal("/sig")
    loop.advance(1000)
    assert len(at) == 3
    assert at[2] - at[1] >= 100


def test_a_beat_that_is_aborted_is_tried_again_at_the_pace() -> None:
    hb = Heartbeat(on_fatal="abort_beat")
    loop = Loop(VirtualClock())
    at: list[int] = []
    hb.register("bad", "/sig", lambda *_: at.append(loop.clock.now_ms()) or (FATAL if len(at) < 4 else None))
    Driver(hb, loop, pace_ms=50).start()
    hb.signal("/sig")
    loop.advance(1000)
    assert at == [0, 50, 100, 150]


def test_a_paused_line_is_not_driven() -> None:
    hb, loop, _, seen = driven(interval_ms=100)
    loop.advance(100)
    before = len(seen)
    hb.pause()
    hb.signal("/sig")
    loop.advance(500)
    assert len(seen) == before
    hb.resume()
    loop.run_until_idle()
    assert len(seen) == before + 1


async def test_on_an_asyncio_loop_beats_are_awaited_and_stop_waits() -> None:
    hb = Heartbeat()
    loop = Loop(VirtualClock())
    loop.attach()
    gate, begun = asyncio.Event(), asyncio.Event()

    async def work(signal: str | None, target: str | None, stage: Any) -> None:
        begun.set()
        await gate.wait()
        stage.write("/done", True)

    hb.register("work", "/sig", work)
    driver = Driver(hb, loop)
    driver.start()
    hb.signal("/sig")
    await begun.wait()
    stopping = asyncio.ensure_future(driver.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    gate.set()
    await stopping
    assert hb.read("/done") is True
    hb.signal("/sig")
    await asyncio.sleep(0)
    assert hb.waiting == 1, "a stopped driver runs nothing"
    loop.detach()


def test_a_log_that_cannot_write_is_tried_again_and_a_line_that_was_taken_is_left() -> None:
    class Full(MemoryEngine):
        full = False

        def submit(self, batches: Any, done: Any) -> None:
            if self.full:
                done([LogUnavailable("disk full")] * len(batches))
            else:
                super().submit(batches, done)

    engine = Full()
    with BlockingLog(engine) as log:
        hb, loop = Heartbeat(log=log), Loop(VirtualClock())
        hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", 1))
        Driver(hb, loop, pace_ms=50).start()
        loop.run_until_idle()
        engine.full = True
        hb.signal("/sig")
        loop.advance(200)
        assert hb.read("/x") is None
        engine.full = False
        loop.advance(100)
        assert hb.read("/x") == 1
        Heartbeat(log=log).beat()
        hb.signal("/sig")
        loop.advance(1000)
        assert hb.waiting == 1


class Broken:
    """An inlet with a mistake that is corrected at last."""

    failures = 3

    async def take(self, limit: int) -> Taken:
        self.failures -= 1
        if self.failures >= 0:
            raise KeyError("a mistake")
        return Taken([])

    def settle(self, taken: Taken) -> None:
        """Nothing was taken."""


def with_broken_inlet() -> tuple[Heartbeat, Loop]:
    hb, loop = Heartbeat(), Loop(VirtualClock())
    hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", 1))
    hb.add_inlet(Broken())
    Driver(hb, loop, pace_ms=50).start()
    hb.signal("/sig")
    return hb, loop


def test_whatever_goes_wrong_is_said_and_the_beat_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    hb, loop = with_broken_inlet()
    loop.advance(1000)
    assert hb.read("/x") == 1
    assert [record.message for record in caplog.records] == ["beat 1 did not happen: 'a mistake'"] * 3


async def test_on_an_asyncio_loop_too(caplog: pytest.LogCaptureFixture) -> None:
    hb, loop = with_broken_inlet()
    for _ in range(20):
        loop.advance(50)
        await asyncio.sleep(0)
    assert hb.read("/x") == 1
    assert [record.message for record in caplog.records] == ["beat 1 did not happen: 'a mistake'"] * 3


def test_an_interval_is_at_least_a_millisecond() -> None:
    with pytest.raises(SettingError):
        Driver(Heartbeat(), Loop(VirtualClock()), interval_ms=0)


# --- topics -----------------------------------------------------------------------------------------------------------


def publish(topic: str, partition: int, *payloads: Any) -> Batch:
    return Batch(
        [
            Append(topic, partition, f"id-{partition}-{i}", 1000 + i, json.dumps(payload).encode(), key="k")
            for i, payload in enumerate(payloads)
        ]
    )


async def opened(engine: MemoryEngine, **rules: Any) -> tuple[Log, Heartbeat, list[Any]]:
    log = Log(engine)
    await log.open()
    hb = Heartbeat(log=log, **rules)
    seen: list[Any] = []

    def bill(signal: str, target: str | None, stage: Any) -> Any:
        event = stage.read(signal)
        seen.append((signal, event["payload"]))
        stage.write(f"/billed/{event['payload']['n']}", (stage.read(f"/billed/{event['payload']['n']}") or 0) + 1)
        return RETRY if event["payload"].get("retry") and stage.attempt == 1 else None

    hb.register("bill", "/topics/orders", bill, match="prefix")
    await hb.open()
    hb.add_inlet(TopicInlet(log, "orders"))
    return log, hb, seen


async def test_each_event_of_a_topic_is_one_signal_that_can_be_read() -> None:
    log, hb, seen = await opened(MemoryEngine())
    await log.commit(publish("orders", 0, {"n": 1}, {"n": 2}))
    await log.commit(publish("orders", 1, {"n": 3}))
    report = await hb.abeat()
    assert seen == [
        ("/topics/orders/0/1", {"n": 1}),
        ("/topics/orders/0/2", {"n": 2}),
        ("/topics/orders/1/1", {"n": 3}),
    ]
    assert [entry["cause"] for entry in hb.read("/rt/beat/1/inbox")] == [
        {"kind": "topic", "source": f"orders/{place}"} for place in ("0@1", "0@2", "1@1")
    ]
    assert report.inbox[0] == ("/topics/orders/0/1", None)
    assert hb.read("/topics/orders/0/1") is None, "dealt with"
    assert hb.read("/topics/orders/0/1", at=1) == {"id": "id-0-0", "ts": 1000, "key": "k", "payload": {"n": 1}}
    assert (await hb.abeat()).inbox == ()
    assert (await hb.areplay()).identical
    await log.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 450 + b"]" * 450,
        b"[" * 5000 + b"]" * 5000,
        b'"\xed\xa0\x80"',
        b"\xff",
        b"NaN",
        b"1e999",
        b'"\\ud800"',
        b"",
    ],
    ids=lambda payload: repr(payload[:9]),
)
async def test_an_event_no_cell_could_hold_is_read_as_text_and_holds_nothing_up(payload: bytes) -> None:
    log = Log(MemoryEngine())
    await log.open()
    hb = Heartbeat(log=log)
    hb.register("bill", "/topics/orders", lambda signal, target, stage: stage.signal(f"/seen{signal}"), match="prefix")
    await hb.open()
    hb.add_inlet(TopicInlet(log, "orders"))
    await log.commit(Batch([Append("orders", 0, "id-1", 1, payload), Append("orders", 0, "id-2", 2, b"2")]))
    assert [emitted.signal for emitted in (await hb.abeat()).emitted] == [f"/seen/topics/orders/0/{n}" for n in (1, 2)]
    assert hb.read("/topics/orders/0/1", at=1)["payload"] == payload.decode(errors="replace")
    assert (await hb.areplay()).identical
    await log.close()


async def test_an_event_stays_readable_while_its_signal_is_tried_again_or_carried() -> None:
    log, hb, seen = await opened(MemoryEngine(), max_runs_per_beat=1)
    await log.commit(publish("orders", 0, {"n": 1, "retry": True}, {"n": 2}))
    for _ in range(4):
        await hb.abeat()
    assert [signal for signal, _ in seen] == ["/topics/orders/0/1", "/topics/orders/0/2", "/topics/orders/0/1"]
    assert [hb.read(f"/topics/orders/0/{i}") for i in (1, 2)] == [None, None]
    assert (await hb.areplay()).identical
    assert (await hb.areplay(2)).identical
    await log.close()


async def test_the_budget_limits_what_a_beat_takes() -> None:
    log, hb, seen = await opened(MemoryEngine(), max_signals_per_beat=3)
    await log.commit(publish("orders", 0, *({"n": n} for n in range(7))))
    hb.signal("/other")
    sizes = []
    for _ in range(4):
        report = await hb.abeat()
        sizes.append((len(report.inbox), hb.more_waits))
    assert sizes == [(3, True), (3, True), (2, False), (0, False)]
    assert [payload["n"] for _, payload in seen] == list(range(7))
    await log.close()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_events_are_consumed_exactly_once_whenever_the_process_dies(moment: str) -> None:
    class Brittle(MemoryEngine):
        commits, dies_at = 0, -1

        def submit(self, batches: Any, done: Any) -> None:
            self.commits += 1
            if self.commits != self.dies_at:
                super().submit(batches, done)
                return
            if moment == "after":
                super().submit(batches, lambda _: None)
            raise OSError("gone")

    for dies_at in range(2, 8):
        engine = Brittle()
        log, hb, _ = await opened(engine, max_signals_per_beat=2)
        await log.commit(publish("orders", 0, *({"n": n} for n in range(9))))
        engine.dies_at = dies_at
        for _ in range(12):
            try:
                await hb.abeat()
            except LogUnavailable:
                await log.close()
                log, hb, _ = await opened(engine, max_signals_per_beat=2)
        assert [await hb.aread(f"/billed/{n}") for n in range(9)] == [1] * 9
        assert (await hb.areplay()).identical
        await log.close()


async def test_events_may_name_a_target() -> None:
    log, hb, seen = await opened(MemoryEngine())
    hb.add_inlet(TopicInlet(log, "moves", target=lambda event: f"/players/{event.key}"))
    hb.register("move", "/topics/moves", lambda signal, target, stage: seen.append((signal, target)), match="prefix")
    hb.bind("/players", "move")
    await log.commit(publish("moves", 0, {"n": 1}))
    await hb.abeat()
    assert seen == [("/topics/moves/0/1", "/players/k")]
    await log.close()


@pytest.mark.parametrize("wrong", [lambda event: event.nothing, lambda event: "/players/*"])
async def test_an_event_whose_target_cannot_be_told_waits_and_is_named(wrong: Any) -> None:
    log, hb, seen = await opened(MemoryEngine())
    functions = [wrong]
    hb.add_inlet(TopicInlet(log, "moves", target=lambda event: functions[-1](event)))
    hb.register("move", "/topics/moves", lambda signal, target, stage: seen.append((signal, target)), match="prefix")
    hb.bind("/players", "move")
    await log.commit(publish("moves", 0, {"n": 1}))
    with pytest.raises(InvalidImpulse, match="moves/0@1"):
        await hb.abeat()
    functions.append(lambda event: f"/players/{event.key}")
    await hb.abeat()
    assert (seen, hb.next_beat) == ([("/topics/moves/0/1", "/players/k")], 2)
    await log.close()
