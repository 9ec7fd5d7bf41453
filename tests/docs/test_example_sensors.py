"""The monitor of sensors: real sensors once, and hours of them on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from mainspring import Fail
from mainspring.testing import World, simulate
from sensor_monitor import HEARTBEAT_MS, LATE_MS, SENSORS, app


async def beat(world: World, times: int, sensors: Iterable[str] = SENSORS) -> None:
    """These sensors live for so many heartbeats."""
    for _ in range(times):
        for name in sensors:
            await world.publish("heartbeats", {"sensor": name, "celsius": 20.5}, key=name)
        await world.advance(HEARTBEAT_MS / 1000)


def alarms(world: World) -> list[str]:
    return [f"{each['sensor']} {each['text']}" for each in world.events("alarms").payloads]


def test_a_sensor_dies_and_comes_back(run_example: Callable[[str], str]) -> None:
    assert run_example("sensor_monitor.py").splitlines() == [
        "the sensors live; now the roof's battery is empty",
        "roof is silent",
        "the battery is changed",
        "roof is back",
    ]


async def test_nobody_is_alarmed_while_all_sensors_live() -> None:
    async with simulate(app) as world:
        await beat(world, 50)
        assert alarms(world) == []


async def test_an_outage_is_reported_once_and_so_is_its_end() -> None:
    async with simulate(app) as world:
        await beat(world, 5)
        await beat(world, 30, ("cellar", "hall"))
        assert alarms(world) == ["roof is silent"]
        await beat(world, 5)
        assert alarms(world) == ["roof is silent", "roof is back"]
        await beat(world, 30, ("cellar", "hall"))
        assert alarms(world)[2:] == ["roof is silent"]


async def test_somebody_is_called_when_it_stays_silent_also_over_a_crash() -> None:
    async with simulate(app) as world:
        await beat(world, 5, ["roof"])
        await world.advance("10s")
        await world.crash_and_restart(down="20s")
        assert alarms(world) == ["roof is silent"]
        await world.advance("40s")
        assert alarms(world) == ["roof is silent", "roof stays silent: somebody has to look"]
        await beat(world, 3, ["roof"])
        assert alarms(world)[2:] == ["roof is back"]


async def test_a_node_that_was_away_blames_no_sensor_for_it() -> None:
    async with simulate(app) as world:
        await beat(world, 5)
        await world.crash_and_restart(down="3h")
        await world.advance((LATE_MS - HEARTBEAT_MS) / 1000)  # so long do the sensors take to connect again
        await beat(world, 20)
        assert alarms(world) == []


async def test_the_last_reading_can_be_asked_for() -> None:
    async with simulate(app) as world:
        await world.publish("heartbeats", {"sensor": "hall", "celsius": 19.5})
        assert (await world.query("Sensor.Read", "hall"))["value"]["celsius"] == 19.5
        with pytest.raises(Fail, match="no sensor attic"):
            await world.query("Sensor.Read", "attic")
