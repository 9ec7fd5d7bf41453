"""A node that goes away: for a moment, for an hour, for good. Under virtual time, with a node that does as told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools

import pytest

from mainspring.client import CannotConnect, Closed, TimedOut, Uncertain, connect
from mainspring.client.connection import Options
from mainspring.loop import VirtualClock
from tests.support.scripted_node import ScriptedNode, virtually

QUIET = {"stall_check": 0.0}


def test_an_hour_without_the_node_loses_nothing_and_doubles_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, random=lambda: 0.0, **QUIET) as bus:
            await bus.publish("t", 0)
            await node.vanish()
            waiting = [asyncio.create_task(bus.publish("t", n)) for n in range(1, 6)]
            await asyncio.sleep(3600)
            assert not any(task.done() for task in waiting)
            await node.start()
            assert [int(await task) for task in waiting] == [2, 3, 4, 5, 6]
        await node.vanish()

    virtually(main)


def test_waits_between_attempts_double_from_half_a_second_to_ten() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        states: list[tuple[str, int]] = []
        async with connect(
            node.url,
            clock=clock,
            random=lambda: 0.0,
            on_state=lambda state: states.append((state, clock.now_ms())),
            drain_timeout=0.1,
            **QUIET,
        ):
            await node.vanish()
            await asyncio.sleep(60)
        waited = [at for state, at in states if state == "waiting"]
        steps = [round((later - earlier) / 100) / 10 for earlier, later in itertools.pairwise(waited)]
        assert steps[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]

    virtually(main)


def test_an_event_stored_without_an_answer_is_sent_again_and_stored_once() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, **QUIET) as bus:
            node.mute = True
            publishing = asyncio.create_task(bus.publish("t", "x"))
            await asyncio.sleep(1)
            assert len(node.stored["t"]) == 1
            await node.vanish()
            node.mute = False
            await node.start()
            assert await publishing == 1
            assert len(node.stored["t"]) == 1
            assert len(node.told("PUBLISH_BATCH")) == 2
        await node.vanish()

    virtually(main)


def test_an_event_without_an_answer_for_longer_than_ids_are_kept_is_in_doubt() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, **QUIET) as bus:
            node.mute = True
            publishing = asyncio.create_task(bus.publish("t", "x", id="order-1"))
            await asyncio.sleep(1)
            await node.vanish()
            node.mute = False
            await asyncio.sleep(3600)
            await node.start()
            with pytest.raises(Uncertain) as doubt:
                await publishing
            assert doubt.value.id == "order-1"
            assert len(node.told("PUBLISH_BATCH")) == 1
        await node.vanish()

    virtually(main)


def test_a_subscription_comes_back_without_its_start() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with (
            connect(node.url, clock=clock, **QUIET) as bus,
            bus.subscribe("t", group="g", from_=7, max_inflight=10),
        ):
            await node.vanish()
            await node.start()
            await node.met(2)
            first, second = node.told("SUBSCRIBE")
            assert first["from"] == {"kind": "offset", "value": 7}
            assert "from" not in second
            assert second["max_inflight"] == 10
        await node.vanish()

    virtually(main)


def test_a_start_the_node_never_confirmed_is_asked_for_again() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        node.mute = True
        await node.start()
        async with connect(node.url, clock=clock, **QUIET) as bus:
            subscription = bus.subscribe("t", group="g", from_="latest")
            await asyncio.sleep(0.1)
            await node.vanish()
            node.mute = False
            await node.start()
            await subscription.confirmed()
            assert [frame["from"] for frame in node.told("SUBSCRIBE")] == [{"kind": "latest"}] * 2
        await node.vanish()

    virtually(main)


def test_acknowledgements_of_dead_leases_are_dropped() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with (
            connect(node.url, clock=clock, **QUIET) as bus,
            bus.subscribe("t", group="g") as events,
        ):
            await node.deliver("t", "g", 1, 2)
            first, second = await anext(events), await anext(events)
            assert await first.ack()
            await asyncio.sleep(0.01)
            await node.vanish()
            await node.start()
            await node.met(2)
            assert not await second.ack()
            assert not await second.nack()
            await asyncio.sleep(0.1)
            assert [(number, frame["offset"]) for number, frame in node.frames if frame["type"] == "ACK"] == [(1, 1)]
            assert node.told("NACK") == []
        await node.vanish()

    virtually(main)


def test_events_that_waited_here_when_the_connection_died_are_not_handed_out() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with (
            connect(node.url, clock=clock, **QUIET) as bus,
            bus.subscribe("t", group="g") as events,
        ):
            await node.deliver("t", "g", 1, 2, 3)
            assert (await anext(events)).offset == 1
            await node.vanish()
            await asyncio.sleep(0.1)
            await node.start()
            await node.met(2)
            await node.deliver("t", "g", 1)
            assert (await anext(events)).offset == 1  # not 2: its lease was gone
        await node.vanish()

    virtually(main)


def test_publishing_waits_for_room_while_the_node_is_away() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, max_queued=3, **QUIET) as bus:
            await node.vanish()
            tasks = [asyncio.create_task(bus.publish("t", n)) for n in range(10)]
            await asyncio.sleep(5)
            assert bus.conversation.publishing.count == 3
            await node.start()
            assert sorted(await asyncio.gather(*tasks)) == list(range(1, 11))
        await node.vanish()

    virtually(main)


def test_a_publish_with_a_timeout_gives_up_and_says_with_which_id_to_try_again() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, drain_timeout=0.1, **QUIET) as bus:
            await node.vanish()
            with pytest.raises(TimedOut, match="order-7"):
                await bus.publish("t", 1, id="order-7", timeout=5)
            await node.start()
            assert await bus.publish("t", 2) == 1  # the one that was given up was never sent
        await node.vanish()

    virtually(main)


def test_close_waits_until_what_was_published_is_confirmed() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        bus = await connect(node.url, clock=clock, drain_timeout=30, **QUIET).__aenter__()
        await node.vanish()
        publishing = asyncio.create_task(bus.publish("t", 1))
        await asyncio.sleep(0)
        closing = asyncio.create_task(bus.close())
        await asyncio.sleep(5)
        assert not closing.done()
        await node.start()
        await closing
        assert await publishing == 1
        await node.vanish()

    virtually(main)


def test_close_gives_up_after_its_time_and_says_so_to_who_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        bus = await connect(node.url, clock=clock, drain_timeout=2, **QUIET).__aenter__()
        await node.vanish()
        publishing = asyncio.create_task(bus.publish("t", 1))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(Closed):
            await publishing
        with pytest.raises(Closed):
            await bus.publish("t", 2)
        await bus.close()

    virtually(main)


def test_a_node_that_says_nothing_any_more_is_left_for_a_new_connection() -> None:
    async def main(clock: VirtualClock) -> None:
        async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(clock.now_ms())
            head = await reader.readuntil(b"\r\n\r\n")
            key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
            digest = hashlib.sha1(key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
            )
            while await reader.read(1000):
                pass
            writer.close()

        accepted: list[int] = []
        server = await asyncio.start_server(ignore, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", clock=clock, drain_timeout=0.1, **QUIET):
            await asyncio.sleep(120)
        assert len(accepted) >= 3
        server.close()

    virtually(main)


def test_entering_without_a_node_says_what_to_do() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        await node.vanish()
        with pytest.raises(CannotConnect, match="mainspring serve"):
            async with connect(node.url, clock=clock, connect_timeout=3):
                pass

    virtually(main)


def test_a_client_may_start_before_its_node() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        await node.vanish()
        async with connect(node.url, clock=clock, connect_timeout=0, **QUIET) as bus:
            publishing = asyncio.create_task(bus.publish("t", 1))
            await asyncio.sleep(30)
            await node.start()
            assert await publishing == 1
        await node.vanish()

    virtually(main)


@pytest.mark.parametrize(("status", "code"), [(401, "unauthorized"), (403, "forbidden"), (404, "cannot_connect")])
def test_a_client_that_is_not_let_in_is_told_at_once_and_does_not_knock_again(status: int, code: str) -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        node.status = status
        await node.start()
        with pytest.raises(CannotConnect) as refused:
            async with connect(node.url, "wrong", clock=clock):
                pass
        assert refused.value.code == code
        await asyncio.sleep(60)
        assert len(node.handshakes) == 1
        assert node.headers[0]["Authorization"] == "Bearer wrong"
        await node.vanish()

    virtually(main)


def test_a_node_in_trouble_is_tried_again() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        node.status = 503
        await node.start()
        async with connect(node.url, clock=clock, connect_timeout=0, **QUIET) as bus:
            await asyncio.sleep(20)
            assert len(node.handshakes) > 3
            node.status = 0
            assert await bus.publish("t", 1) == 1
        await node.vanish()

    virtually(main)


def test_a_disk_that_is_full_for_a_while_delays_publishing() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        node.refusals = ["unavailable"] * 5
        await node.start()
        async with connect(node.url, clock=clock, **QUIET) as bus:
            assert await bus.publish("t", 1) == 1
            assert len(node.told("PUBLISH_BATCH")) == 6
        await node.vanish()

    virtually(main)


def test_defaults_have_units_people_expect() -> None:
    assert (Options().connect_timeout, Options().drain_timeout, Options().dedupe_window) == (10.0, 10.0, 600.0)


def test_a_client_of_several_nodes_goes_to_the_next_one_when_its_own_goes_away() -> None:
    async def main(clock: VirtualClock) -> None:
        first, second = ScriptedNode(), ScriptedNode()
        await first.start()
        await second.start()
        urls = f"{first.url}, {second.url}"
        async with connect(urls, clock=clock, random=lambda: 0.0, **QUIET) as bus:
            assert bus.url == first.url
            await bus.publish("t", 1)
            await first.vanish()
            await bus.publish("t", 2)
            assert bus.url == second.url
            await second.vanish()
            waiting = asyncio.create_task(bus.publish("t", 3))
            await asyncio.sleep(60)
            await first.start()
            await waiting
            assert bus.url == first.url
        await first.vanish()

    virtually(main)


def test_clients_of_several_nodes_begin_at_different_ones() -> None:
    urls = "ws://a:1,ws://b:2"
    assert connect(urls, random=lambda: 0.0).url == "ws://a:1"
    assert connect(urls, random=lambda: 0.9).url == "ws://b:2"
