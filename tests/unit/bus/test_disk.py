"""A disk that fills: the node warns and says what grows, refuses publishes, and can still be tidied up."""

from __future__ import annotations

import logging

import pytest

from mainspring.bus import DiskState, Unavailable
from mainspring.bus.disk import space_of
from mainspring.errors import SettingError
from mainspring.log import MemoryEngine, Room
from mainspring.settings import Settings
from tests.support.bus import BEGINNING, World, in_virtual_time, settle

GB = 10**9


class SmallDisk(MemoryEngine):
    """Says that there is as much room as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Room(total=100 * GB, free=50 * GB, size=0)

    async def room(self) -> Room:
        return self.now


def disk_of(world: World) -> tuple[SmallDisk, DiskState]:
    assert isinstance(world.engine, SmallDisk)
    assert world.bus.disk.state is not None
    return world.engine, world.bus.disk.state


@pytest.mark.parametrize(
    ("text", "total", "meant"),
    [
        ("10%", 1000, 100),
        ("2.5%", 1000, 25),
        ("5GB", 1000, 5 * GB),
        ("5 gib", 1000, 5 << 30),
        ("512", 1000, 512),
        ("10%,5GB", 1000 * GB, 5 * GB),
        ("10%, 5GB", 10 * GB, GB),
        ("0", 1000, 0),
    ],
)
def test_space_is_given_in_percent_bytes_or_both(text: str, total: int, meant: int) -> None:
    assert space_of(text, "disk_warn")(total) == meant


@pytest.mark.parametrize("text", ["", "much", "10%%", "-5GB", "5 GBs", "10%,"])
def test_what_is_no_space_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match="disk_warn") as refused:
        space_of(text, "disk_warn")
    assert "10%,5GB" in refused.value.remedy


def test_the_defaults_leave_large_and_small_disks_usable() -> None:
    warn, reserve = space_of(Settings().disk_warn, ""), space_of(Settings().disk_reserve, "")
    assert (warn(10_000 * GB), reserve(10_000 * GB)) == (5 * GB, 512 * 10**6)
    assert (warn(GB), reserve(GB)) == (GB // 10, GB // 20)


@in_virtual_time(engine=None, audit=False)
async def test_an_engine_that_does_not_know_its_room_refuses_nothing(world: World) -> None:
    assert world.bus.disk.state is None
    assert (await world.connect().publish("t", 1))["offset"] == 1


def test_a_disk_that_fills_is_said_and_publishes_are_refused_until_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = SmallDisk()

    @in_virtual_time(engine=engine, audit=False)
    async def story(world: World) -> None:
        peer = world.connect()
        assert disk_of(world)[1].state == "ok"
        await peer.publish_many("small", 1)
        await peer.publish("large", "x" * 1_000)
        engine.now = Room(100 * GB, 4 * GB, 90 * GB)
        await settle(61)
        found = disk_of(world)[1]
        assert (found.state, found.free) == ("low", 4 * GB)
        assert [each.topic for each in found.largest] == ["", "large", "small"]
        assert "4.0 GB of 100.0 GB are left" in caplog.text
        assert "large 1" in caplog.text
        assert (await peer.publish("large", 2))["type"] == "PUBLISHED"
        await peer.subscribe("large", "g", BEGINNING)
        engine.now = Room(100 * GB, GB // 10, 90 * GB)
        await settle(61)
        assert disk_of(world)[1].state == "full"
        refused = await peer.ask({"type": "PUBLISH", "topic": "large", "payload": 3})
        assert (refused["type"], refused["code"]) == ("ERROR", "unavailable")
        with pytest.raises(Unavailable, match="nearly full"):
            await world.bus.publish("new", b"1")
        assert world.bus.topics.find("new") is None
        peer.ack("large", "g", 2)  # up to it
        assert await world.committed("large", "g") == 2
        assert await world.bus.purge_topic("large") == 2
        await world.bus.delete_topic("small")
        engine.now = Room(100 * GB, GB // 2, 90 * GB, reusable=20 * GB)  # the file does not shrink
        await settle(2)  # it looks often now
        assert disk_of(world)[1].state == "ok"
        assert (await peer.publish("large", 4))["offset"] == 3

    with caplog.at_level(logging.INFO, "mainspring.bus"):
        story()


@in_virtual_time(engine=SmallDisk(), audit=False)
async def test_what_the_nodes_own_program_has_begun_is_stored(world: World) -> None:
    engine, _ = disk_of(world)
    engine.now = Room(100 * GB, 0, 90 * GB)
    await settle(61)
    assert world.bus.disk.is_full
    world.bus.prepare("results", b"1", key=None, headers=None, id="r-1")
    with pytest.raises(Unavailable):
        await world.bus.publish("results", b"1")
