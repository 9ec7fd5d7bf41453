"""Schedules: fired once per time, whatever happens to the node."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from mainspring.bus import BadFrame, Schedule, UnknownSchedule
from mainspring.bus.groups.registry import GroupRegistry
from mainspring.log import Batch
from tests.support.bus import World, in_virtual_time, settle


def every(ms: int, name: str = "tick") -> Schedule:
    return Schedule(name=name, topic="t", payload=msgspec.Raw(b'"tick"'), every=ms)


@in_virtual_time
async def test_every_fires_on_its_grid(world: World) -> None:
    start = world.clock.wall_ms()
    assert (await world.bus.put_schedule(every(1_000))).next_ms == start + 1_000
    await settle(5.5)
    stamps = [event.ts - start for event in await world.log.read("t", 0, 1, 100)]
    assert stamps == [1_000, 2_000, 3_000, 4_000, 5_000]


@in_virtual_time
async def test_cron_fires_in_utc(world: World) -> None:
    await world.bus.put_schedule(Schedule(name="c", topic="t", payload=msgspec.Raw(b"1"), cron="0 * * * *", key="k"))
    await settle(2 * 3600)
    events = await world.log.read("t", 0, 1, 100)
    assert [event.ts % 3_600_000 for event in events] == [0, 0]
    assert events[0].key == "k"


@in_virtual_time
async def test_a_crash_neither_loses_nor_doubles_a_firing(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    for _ in range(7):
        await settle(0.7)
        await world.kill()
    await settle(0.2)
    events = await world.log.read("t", 0, 1, 100)
    assert len({event.ts // 1_000 for event in events}) == len(events) == 5


@in_virtual_time
async def test_a_firing_that_takes_long_has_the_time_from_which_the_next_was_planned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = itertools.cycle((0.7, 0.0))

    async def slowly(*_: object) -> str:
        await settle(next(waits))
        return ""

    monkeypatch.setattr(GroupRegistry, "unsettled", slowly)
    await world.kill()
    await world.bus.put_schedule(msgspec.structs.replace(every(500), overlap="skip"))
    await settle(10)
    events = await world.log.read("t", 0, 1, 100)
    assert len({event.ts // 500 for event in events}) == len(events) > 5


@in_virtual_time
async def test_a_clock_that_is_set_back_silences_no_interval(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    await settle(3.5)
    world.clock.shift_wall(-4 * 3_600_000)
    world.bus.schedules.clock_moved()
    await settle(3.5)
    assert len(await world.log.read("t", 0, 1, 100)) == 6


@in_virtual_time
@pytest.mark.parametrize("back_h", [1, 2])
async def test_a_clock_that_was_ahead_when_an_event_was_accepted_delays_it_by_its_own_delay_at_most(
    world: World, back_h: int
) -> None:
    """Nobody has noticed that it was; set back, it may even say what it said before."""
    peer = world.connect()
    await peer.publish("t", 1, delay_ms=10)
    await settle(1)
    world.clock.shift_wall(3_600_000)
    await peer.publish("t", 2, delay_ms=5_000)
    world.clock.shift_wall(-back_h * 3_600_000)
    if back_h > 1:
        world.bus.schedules.clock_moved()
    await settle(11)
    assert len(await world.log.read("t", 0, 1, 100)) == 2


@in_virtual_time
async def test_a_clock_that_is_set_back_repeats_no_time_of_day(world: World) -> None:
    await world.bus.put_schedule(Schedule(name="c", topic="t", payload=msgspec.Raw(b"1"), cron="0 * * * *"))
    await settle(3_600)
    world.clock.shift_wall(-600_000)
    world.bus.schedules.clock_moved()
    await settle(700)
    assert len(await world.log.read("t", 0, 1, 100)) == 1


@in_virtual_time
async def test_after_a_long_sleep_of_the_machine_what_is_due_is_called_at_once(world: World) -> None:
    await world.bus.put_schedule(Schedule(name="c", topic="t", payload=msgspec.Raw(b"1"), cron="0 * * * *"))
    world.clock.shift_wall(3_600_000)
    world.bus.schedules.clock_moved()
    await settle(1)
    assert len(await world.log.read("t", 0, 1, 100)) == 1


@in_virtual_time
async def test_clocks_of_nodes_that_differ_a_little_keep_the_grid(world: World) -> None:
    start = world.clock.wall_ms()
    await world.bus.put_schedule(every(10_000))
    world.clock.shift_wall(-30_000)
    world.bus.schedules.clock_moved()
    await settle(41)
    assert [event.ts - start for event in await world.log.read("t", 0, 1, 100)] == [10_000]


@in_virtual_time
async def test_what_was_missed_is_made_up_once(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    world.loop.detach()
    world.bus.delivery.closed = True
    world.bus.schedules.stop()
    await settle(100)
    await world.start()
    await settle(0.5)
    assert len(await world.log.read("t", 0, 1, 100)) == 1
    await settle(1)
    assert len(await world.log.read("t", 0, 1, 100)) == 2


@in_virtual_time
async def test_clients_schedule_and_unschedule(world: World) -> None:
    peer = world.connect()
    frame = {"type": "SCHEDULE", "name": "s", "topic": "t", "payload": [1], "every": 500, "corr": "c"}
    answer = await peer.ask(frame)
    assert (answer["type"], answer["name"], answer["corr"]) == ("OK", "s", "c")
    assert answer["next"] > world.clock.wall_ms()
    assert [schedule.name for schedule in world.bus.schedules.all()] == ["s"]
    await settle(1.1)
    assert (await peer.ask({"type": "UNSCHEDULE", "name": "s"}))["type"] == "OK"
    await settle(10)
    assert await world.stored("t") == [[1], [1]]
    with pytest.raises(UnknownSchedule):
        await world.bus.schedules.delete("s")
    with pytest.raises(BadFrame):
        await world.bus.put_schedule(msgspec.structs.replace(every(1_000), cron="* * * * *"))


@in_virtual_time(max_topics=4)
async def test_schedules_fire_on_a_node_that_takes_no_more_topics(world: World) -> None:
    peer = world.connect()
    assert (await peer.ask({"type": "SCHEDULE", "name": "s", "topic": "late", "payload": 1, "every": 5_000}))["next"]
    await world.kill()
    peer = world.connect()
    await peer.publish("first", 1)
    assert (await peer.ask({"type": "PUBLISH", "topic": "second", "payload": 1}))["code"] == "unavailable"
    await settle(5)
    assert await world.stored("late") == [1]


# -- pause, resume, run now


@in_virtual_time
async def test_a_paused_schedule_is_silent_also_after_a_crash_and_goes_on_from_now(world: World) -> None:
    start = world.clock.wall_ms()
    await world.bus.put_schedule(every(1_000))
    await settle(2.5)
    assert (await world.bus.schedules.pause("tick")).paused
    await settle(5)
    await world.kill()
    await settle(5)
    assert world.bus.schedules.get("tick").paused
    assert (await world.bus.schedules.resume("tick")).next_ms == start + 13_000, "what passed is not made up"
    await settle(1)
    assert [event.ts - start for event in await world.log.read("t", 0, 1, 100)] == [1_000, 2_000, 13_000]


@in_virtual_time
async def test_a_pause_that_ends_before_the_next_time_skips_nothing(world: World) -> None:
    planned = await world.bus.put_schedule(every(10_000))
    for _ in range(3):
        await world.bus.schedules.pause("tick")
        await settle(1)
        assert (await world.bus.schedules.resume("tick")).next_ms == planned.next_ms
    await settle(8)
    assert len(await world.log.read("t", 0, 1, 100)) == 1


@in_virtual_time
async def test_resuming_what_is_not_paused_changes_nothing(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    before = world.bus.schedules.get("tick")
    assert await world.bus.schedules.resume("tick") == before


@in_virtual_time
async def test_a_schedule_that_is_replaced_stays_paused(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    await world.bus.schedules.pause("tick")
    assert (await world.bus.put_schedule(every(2_000))).paused
    await settle(10)
    assert not await world.log.read("t", 0, 1, 100)


@in_virtual_time
async def test_run_now_publishes_at_once_and_the_next_time_stays(world: World) -> None:
    planned = await world.bus.put_schedule(every(10_000))
    event = await world.bus.schedules.run("tick")
    assert (event.topic, event.partition, event.offset) == ("t", 0, 1)
    known = world.bus.schedules.get("tick")
    assert (known.next_ms, known.last_ms) == (planned.next_ms, world.clock.wall_ms())
    await world.bus.schedules.pause("tick")
    assert (await world.bus.schedules.run("tick")).offset == 2
    await settle(30)
    assert len(await world.log.read("t", 0, 1, 100)) == 2


@in_virtual_time
async def test_a_schedule_that_is_not_there_cannot_be_changed(world: World) -> None:
    schedules = world.bus.schedules
    for verb in (schedules.pause, schedules.resume, schedules.run, schedules.delete):
        with pytest.raises(UnknownSchedule, match="no schedule 'nobody'"):
            await verb("nobody")


# -- jitter and overlap


@in_virtual_time
async def test_jitter_makes_each_firing_late_by_the_same_every_time(world: World) -> None:
    async def lateness(name: str) -> list[int]:
        start = world.clock.wall_ms()
        schedule = msgspec.structs.replace(every(60_000, name), topic=name, jitter=30_000)
        await world.bus.put_schedule(schedule)
        await settle(601)
        return [event.ts - start - 60_000 * n for n, event in enumerate(await world.log.read(name, 0, 1, 100), 1)]

    first = await lateness("first")
    assert len(first) in (9, 10)
    assert all(0 <= each <= 30_000 for each in first)
    assert len(set(first)) > 5, "they differ"
    plan = Schedule(name="first", topic="t", payload=msgspec.Raw(b"1"), cron="0 * * * *", jitter=60_000)
    assert plan.planned(1_700_000_000_000) == plan.planned(1_700_000_000_000)
    assert plan.planned(1_700_000_000_000).due_ms == 1_700_002_800_000


@in_virtual_time
async def test_skip_publishes_nothing_while_a_group_has_something_to_settle(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", {"kind": "offset", "value": 0})
    await world.bus.put_schedule(msgspec.structs.replace(every(1_000), overlap="skip"))
    await settle(3.5)
    assert len(await world.log.read("t", 0, 1, 100)) == 1
    last = world.bus.schedules.get("tick").last
    assert last is not None
    assert (last.result, last.reason) == ("skipped", "group 'g' has 1 events to settle")
    await world.kill()
    assert world.bus.schedules.get("tick").last == last, "it is kept"
    peer = world.connect()
    await peer.subscribe("t", "g")
    peer.ack("t", "g", 1)
    await settle(1)
    assert len(await world.log.read("t", 0, 1, 100)) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"jitter": 2_000}, {"jitter": -1}, {"timezone": "Europe/Berlin"}, {"overlap": "maybe"}, {"every": None},
     {"every": None, "cron": "0 3 * * *", "timezone": "Mars/Olympus"}],
)  # fmt: skip
def test_what_cannot_be_a_schedule_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        msgspec.structs.replace(every(1_000), **wrong).check()


# -- many


def lines_run(code: Any) -> Any:
    """How many lines of `bus/schedules` run while `code` is awaited."""

    async def count() -> int:
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if "bus/schedules" not in frame.f_code.co_filename:
                return None
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await code
        finally:
            sys.settrace(before)
        return lines

    return count()


@in_virtual_time
async def test_a_firing_does_the_same_work_however_many_others_there_are(world: World) -> None:
    async def put(count: int, first: int = 0) -> None:
        for number in range(first, count):
            await world.bus.schedules.put(every(86_400_000, f"daily{number}"))

    await world.bus.put_schedule(every(1_000))
    await put(10)
    await settle(1.5)
    few = await lines_run(settle(10))
    await put(2_000, 10)
    many = await lines_run(settle(10))
    assert few > 0
    assert many == few
    assert len(await world.log.read("t", 0, 1, 100)) == 21


@in_virtual_time
async def test_those_of_former_versions_do_not_pile_up(world: World) -> None:
    for _ in range(2_000):
        await world.bus.put_schedule(every(86_400_000))
    assert len(world.bus.schedules._heap) < 1_000


@in_virtual_time
async def test_all_that_are_due_at_once_share_their_commits(world: World) -> None:
    for number in range(1_200):
        await world.bus.schedules.put(
            Schedule(name=f"s{number}", topic="t", payload=msgspec.Raw(b"1"), cron="0 * * * *")
        )
    before = world.log.commits
    await settle(3_600)
    assert len(await world.log.read("t", 0, 1, 2_000)) == 1_200
    assert world.log.commits - before < 100


# -- what the version before wrote


@in_virtual_time
async def test_rows_of_the_version_before_keep_their_next_time(world: World) -> None:
    due = world.clock.wall_ms() + 7_000
    row = b'{"name":"old","topic":"t","payload":{"n":1},"every":60000,"nextMs":%d}' % due
    batch = Batch()
    batch.put("schedules", "named/old", row)
    await world.log.commit(batch)
    await world.kill()
    known = world.bus.schedules.get("old")
    assert (known.next_ms, known.overlap, known.paused, known.last) == (due, "queue", False, None)
    await settle(8)
    (event,) = await world.log.read("t", 0, 1, 100)
    assert event.ts == due
    assert world.bus.schedules.get("old").next_ms == due + 60_000
