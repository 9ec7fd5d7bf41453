"""While two programs run side by side, what either of them declares fires; where they differ the newer decides."""

from __future__ import annotations

import asyncio

from mainspring import App, Event
from tests.support.upgrade import LEASE_MS, Site, story, wait


def program(**schedules: str) -> App:
    """One that is called as often as it says, and tells the topic of the same name."""
    app = App("shop")
    for name, interval in schedules.items():

        def call(event: Event, name: str = name) -> None:  # type: ignore[type-arg]
            event.publish(f"called.{name}", event.offset)

        app.every(interval, name=name)(call)
    return app


def old() -> App:
    return program(tick="5s")


def new() -> App:
    return program(tick="5s", report="7s")


@story
async def test_an_old_node_that_starts_again_leaves_what_the_new_program_declares(site: Site) -> None:
    a = await site.start("a", new())
    b = await site.start("b", old())
    assert a.schedules == b.schedules == {"tick": 5_000, "report": 7_000}
    await b.stop()
    b = await site.start("b", old())
    assert a.schedules == b.schedules == {"tick": 5_000, "report": 7_000}
    await wait(20_000)
    assert await site.stored("called.report") == [1, 2]
    assert await site.stored("called.tick") == [1, 2, 3, 4]


@story
async def test_what_only_the_old_program_declares_goes_with_its_last_node(site: Site) -> None:
    a, b = await site.start("a", new()), await site.start("b", new())
    await a.stop()
    a = await site.start("a", old())
    assert "report" in b.schedules, "one node still calls it"
    await b.stop()
    b = await site.start("b", old())
    assert a.schedules == b.schedules == {"tick": 5_000}


@story
async def test_a_node_that_was_killed_declares_nothing_once_its_lease_is_over(site: Site) -> None:
    a, b = await site.start("a", new()), await site.start("b", old())
    a.kill()
    await b.stop()
    b = await site.start("b", old())
    assert "report" in b.schedules, "nobody can know yet that it does not come back"
    await wait(2 * LEASE_MS)
    await b.stop()
    b = await site.start("b", old())
    assert b.schedules == {"tick": 5_000}


@story
async def test_a_changed_interval_is_the_newer_programs_also_when_an_old_node_starts_again(site: Site) -> None:
    b = await site.start("b", old())
    a = await site.start("a", program(tick="2s"))
    assert b.schedules == {"tick": 2_000}
    await b.stop()
    b = await site.start("b", old())
    assert a.schedules == {"tick": 2_000}
    await a.stop()
    a = await site.start("a", old())
    assert a.schedules == {"tick": 5_000}, "rolled back: no node has the newer program any more"


@story
async def test_a_program_that_comes_back_after_a_rollback_is_still_the_newer_one(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", program(tick="2s"))
    await a.stop()
    await b.stop()
    b = await site.start("b", old())
    assert b.schedules == {"tick": 5_000}
    a = await site.start("a", program(tick="2s"))
    await b.stop()
    b = await site.start("b", old())
    assert b.schedules == {"tick": 2_000}


@story
async def test_what_is_declared_as_before_keeps_its_time_through_an_upgrade(site: Site) -> None:
    a, b = await site.start("a", old()), await site.start("b", old())
    (before,) = (each.next_ms for each in a.core.bus.schedules.all())
    for _ in range(2):
        await a.stop()
        a = await site.start("a", new())
    await b.stop()
    b = await site.start("b", new())
    assert [each.next_ms for each in b.core.bus.schedules.all() if each.name == "app/shop/tick"] == [before]


@story
async def test_two_nodes_that_start_at_the_same_time_agree(site: Site) -> None:
    c = await site.start("c", new())
    await c.stop()
    a, b = await asyncio.gather(site.start("a", new()), site.start("b", old()))
    assert a.schedules == b.schedules == {"tick": 5_000, "report": 7_000}


@story
async def test_a_node_that_lost_its_lease_says_again_what_it_declares(site: Site) -> None:
    a, b = await site.start("a", new()), await site.start("b", old())
    a.engine.cut_off = True
    await wait(2 * LEASE_MS)
    await b.stop()
    b = await site.start("b", old())
    assert b.schedules == {"tick": 5_000}
    a.engine.join_again()
    await wait(LEASE_MS)
    assert a.schedules == b.schedules == {"tick": 5_000, "report": 7_000}
    await b.stop()
    b = await site.start("b", old())
    assert b.schedules == {"tick": 5_000, "report": 7_000}


@story
async def test_another_program_on_the_same_log_removes_nothing(site: Site) -> None:
    a = await site.start("a", new())
    other = App("bakery")
    other.every("1s", name="tick")(lambda: None)
    b = await site.start("b", other)
    await site.start("c", None)
    await a.stop()
    names = {each.name for each in b.core.bus.schedules.all()}
    assert names == {"app/shop/tick", "app/shop/report", "app/bakery/tick"}


@story
async def test_a_node_alone_on_a_shared_log_removes_what_it_no_longer_declares_when_it_starts(site: Site) -> None:
    a = await site.start("a", new())
    a.kill()
    a = await site.start("a", old())
    assert a.schedules == {"tick": 5_000}
