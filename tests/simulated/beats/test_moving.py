"""A line goes with its log: from one node's own to one that several share, and back."""

from __future__ import annotations

from mainspring.beats import Heartbeat
from mainspring.log import Log
from tests.support.shared_beats import LEASE_MS, World, in_virtual_time, install, leader, nodes, seen, wait


@in_virtual_time
async def test_a_line_begun_alone_is_led_by_one_of_several_and_goes_on_alone_again(world: World) -> None:
    log = Log(world.shared.state)
    alone = Heartbeat(log)
    install(alone)
    await alone.open()
    alone.signal("/jobs/1")
    await alone.abeat()
    alone.signal("/jobs/2", beat=4)
    await alone.aclose()
    made = await nodes(world, "a", "b")
    await wait(1_000)
    assert seen(made[0]) == seen(made[1]) == {"/jobs/1": 1, "/jobs/2": 1}
    lead = leader(made)
    await lead.driver.stop()  # what comes now is accepted, and nobody takes it
    (other,) = [each for each in made if each is not lead]
    await other.signal("/jobs/3")
    other.heartbeat.bind("/places", "bound")
    await other.heartbeat.aflush()
    for each in made:
        await each.leave()
    await wait(LEASE_MS)
    again = Heartbeat(log)
    install(again)
    await again.open()
    assert again.digest == lead.heartbeat.digest
    assert again.waiting == 1
    again.signal("/place", "/places/1")
    await again.abeat()
    assert again.paths("/seen") == ["/seen/jobs/1", "/seen/jobs/2", "/seen/jobs/3"]
    assert again.paths("/bound") == ["/bound/places/1"]
    once_more = Heartbeat(log)
    await once_more.open()
    assert once_more.waiting == 0, "what was left is taken once"
    assert await once_more.averify() == []
