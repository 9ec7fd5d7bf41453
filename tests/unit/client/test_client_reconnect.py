"""When a client connects again: the pauses alone, and the states of a client whose node goes and comes."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mainspring.client import connect
from mainspring.client.connection import RECONNECT
from mainspring.loop import VirtualClock
from tests.support.scripted_node import ScriptedNode, virtually


def test_the_first_wait_is_the_base_and_each_next_one_doubles_up_to_the_cap() -> None:
    pauses = RECONNECT.series(lambda: 0.0)
    assert [pauses.failed() for _ in range(8)] == [500, 1000, 2000, 4000, 8000, 10000, 10000, 10000]


def test_jitter_shortens_each_wait_by_at_most_half() -> None:
    pauses = RECONNECT.series(lambda: 0.999999)
    assert [pauses.failed() for _ in range(3)] == [250, 500, 1000]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60))
def test_a_wait_is_never_longer_than_the_cap_and_never_shorter_than_half_the_base(chances: list[float]) -> None:
    following = iter(chances)
    pauses = RECONNECT.series(lambda: next(following))
    for _ in chances:
        assert 250 <= pauses.failed() <= 10_000


def test_states_follow_each_other_a_connection_starts_the_waits_anew_and_closed_stays_closed() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        states: list[str] = []
        bus = connect(node.url, clock=clock, random=lambda: 0.0, on_state=states.append, stall_check=0.0)
        async with bus:
            for _ in range(2):
                await node.vanish()
                await asyncio.sleep(0.4)
                await node.start()
                await asyncio.sleep(0.2)  # half a second after the loss, each time
                assert bus.connected
            assert states == ["connecting", "open", *(["waiting", "connecting", "open"] * 2)]
        await node.vanish()
        await asyncio.sleep(60)
        assert set(states[8:]) == {"closed"}
        assert not bus.connected

    virtually(main)
