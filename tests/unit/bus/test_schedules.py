"""Schedules: fired once per time, whatever happens to the node."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.bus import BadFrame, Schedule, UnknownSchedule
from mainspring.bus.schedules.cron import CronLine
from tests.support.bus import World, in_virtual_time, settle


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("line", "after", "following"),
    [
        ("* * * * *", "2024-01-01T00:00:00", "2024-01-01T00:01:00"),
        ("*/15 * * * *", "2024-01-01T00:14:59", "2024-01-01T00:15:00"),
        ("0 3 * * *", "2024-01-01T03:00:00", "2024-01-02T03:00:00"),
        ("30 8-10/2 * * *", "2024-01-01T08:31:00", "2024-01-01T10:30:00"),
        ("0 0 29 2 *", "2023-01-01T00:00:00", "2024-02-29T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 12 * * mon", "2024-01-01T12:00:00", "2024-01-08T12:00:00"),
        ("0 12 * * 7", "2024-01-01T12:00:00", "2024-01-07T12:00:00"),
        ("0 12 13 * fri", "2024-01-01T00:00:00", "2024-01-05T12:00:00"),
        ("0 12 13 * *", "2024-01-01T00:00:00", "2024-01-13T12:00:00"),
        ("0 0 1 jan,jul *", "2024-01-01T00:00:00", "2024-07-01T00:00:00"),
        ("5,10 0 31 dec *", "2024-12-31T00:05:00", "2024-12-31T00:10:00"),
    ],
)
def test_cron_lines(line: str, after: str, following: str) -> None:
    assert CronLine(line).next_after(at(after)) == at(following)


@pytest.mark.parametrize(
    "line", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *",
             "5-1 * * * *", "a * * * *", "* * * * * *", "0 0 31 2 *", "1, * * * *", "99999 * * * *"]
)  # fmt: skip
def test_lines_that_are_none(line: str) -> None:
    with pytest.raises(BadFrame):
        CronLine(line)


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(["*/7 * * * *", "0 0 * * 1-5", "30 2 1,15 * *"]))
def test_the_next_time_is_later_and_nothing_lies_between(ms: int, line: str) -> None:
    cron = CronLine(line)
    following = cron.next_after(ms)
    assert following > ms
    assert following % 60_000 == 0
    assert cron.next_after(following - 1) == following


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
async def test_a_clock_that_is_set_back_silences_no_interval(world: World) -> None:
    await world.bus.put_schedule(every(1_000))
    await settle(3.5)
    world.clock.shift_wall(-4 * 3_600_000)
    world.bus.schedules.clock_moved()
    await settle(3.5)
    assert len(await world.log.read("t", 0, 1, 100)) == 6


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
