"""A group whose members are connected to several nodes."""

from __future__ import annotations

import pytest

from mainspring.bus import Conflict, Start
from mainspring.bus.groups import PositionWrite
from mainspring.bus.groups.shared.position import ClaimWrite
from mainspring.bus.topics import DeclaredGroup
from tests.support.bus import BEGINNING, LATEST, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, in_town, settle


async def publish(node: Node, count: int, first: int = 1, topic: str = "t", **fields: object) -> None:
    peer = node.connect()
    for n in range(first, first + count):
        await peer.publish(topic, n, **fields)
    peer.close()


def payloads(peer: Peer) -> list[int]:
    return [frame["envelope"]["payload"] for frame in peer.got if frame["type"] == "MESSAGE"]


@in_town
async def test_each_event_goes_to_one_member_wherever_it_is_connected(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=5)
    await two.subscribe("t", "g", BEGINNING, max_inflight=5)
    await publish(first, 10)
    await settle(0.1)
    assert sorted(payloads(one) + payloads(two)) == list(range(1, 11))
    assert len(payloads(one)) == len(payloads(two)) == 5


@in_town
async def test_acknowledgements_on_both_nodes_make_one_commit_that_both_know(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=3)
    await two.subscribe("t", "g", BEGINNING, max_inflight=3)
    await publish(second, 6)
    await settle(0.1)
    lower, upper = sorted((one, two), key=lambda peer: peer.got[0]["offset"])
    for frame in await upper.messages():
        upper.ack("t", "g", frame["offset"])
    await settle(0.1)
    below = min(payloads(lower)) - 1
    assert [await node.committed("t", "g") for node in town.nodes] == [below, below]
    for frame in await lower.messages():
        lower.ack("t", "g", frame["offset"])
    await settle(0.1)
    assert [await node.committed("t", "g") for node in town.nodes] == [6, 6]
    assert [node.bus.groups.infos("t")[0].members for node in town.nodes] == [2, 2]


@in_town
async def test_a_node_takes_no_more_than_its_members_have_room_for(town: Town) -> None:
    first, second = town.nodes
    slow = first.connect()
    await slow.subscribe("t", "g", BEGINNING, max_inflight=2)
    await publish(first, 20)
    await settle(0.1)
    assert payloads(slow) == [1, 2]
    quick = second.connect()
    await quick.subscribe("t", "g", max_inflight=100)
    await settle(0.1)
    assert payloads(quick) == list(range(3, 21))


@pytest.mark.parametrize("sticky", [False, True])
@in_town(nodes=3)
async def test_all_nodes_together_have_no_more_than_the_group_may_have(town: Town, sticky: bool) -> None:
    for node in town.nodes:
        node.bus.topics.declared = lambda _topic, _group: DeclaredGroup(concurrency=4)
    peers = [node.connect() for node in town.nodes for _ in range(2)]
    for peer in peers:
        await peer.subscribe("t", "g", BEGINNING, max_inflight=3, ack="each", sticky=sticky)
    await publish(town.nodes[0], 30)
    handled: list[int] = []
    most = 0
    while len(handled) < 30:
        await settle(0.1)
        held = [(peer, frame["offset"]) for peer in peers for frame in peer.got if frame["type"] == "MESSAGE"]
        held = [(peer, offset) for peer, offset in held if offset not in handled]
        most = max(most, len(held))
        assert held
        peer, offset = held[0]
        peer.ack("t", "g", offset)
        handled.append(offset)
    assert most == 4


@in_town
async def test_what_a_leaving_member_held_goes_to_another_node(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=4)
    await publish(first, 4)
    await settle(0.1)
    await two.subscribe("t", "g", max_inflight=4)
    one.close()
    await settle(0.1)
    assert [(frame["offset"], frame["attempt"]) for frame in await two.messages()] == [(n, 2) for n in range(1, 5)]


@in_town
async def test_a_member_that_takes_no_more_holds_nothing_back(town: Town) -> None:
    """Out of credits while a lease runs out: the event goes to the other node."""
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    one.send({"type": "FLOW", "credits": 2})
    await one.subscribe("t", "g", BEGINNING, max_inflight=10)
    await publish(first, 2)
    await settle(0.1)
    assert payloads(one) == [1, 2]
    await two.subscribe("t", "g", max_inflight=10)
    one.nack("t", "g", 1)
    await settle(0.1)
    assert [(frame["offset"], frame["attempt"]) for frame in await two.messages()] == [(1, 2)]


@in_town
async def test_a_dead_nodes_events_come_to_the_others_and_their_attempts_count_on(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=10)
    await publish(second, 5)
    await settle(0.1)
    one.ack("t", "g", 2)
    await settle(0.1)
    await two.subscribe("t", "g", max_inflight=10)
    first.kill()
    await settle(LEASE_MS / 1000 * 3)
    assert [(frame["offset"], frame["attempt"]) for frame in await two.messages()] == [(3, 2), (4, 2), (5, 2)]
    assert await second.committed("t", "g") == 2
    assert second.bus.groups.infos("t")[0].members == 1


@in_town
async def test_a_node_that_stops_gives_back_at_once(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=3)
    await publish(second, 3)
    await settle(0.1)
    await two.subscribe("t", "g", max_inflight=10)
    await first.stop()
    await settle(0.1)
    assert [(frame["offset"], frame["attempt"]) for frame in await two.messages()] == [(n, 2) for n in range(1, 4)]
    assert [record.key async for record in second.log.scan("claims")] == [
        record.key async for record in second.log.scan("claims") if record.key.endswith(f"{second.cluster.epoch:020d}")
    ]


@in_town
async def test_a_fenced_node_cannot_acknowledge_what_others_have_taken_over(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=3)
    await publish(second, 3)
    await settle(0.1)
    await two.subscribe("t", "g", max_inflight=10)
    first.engine.cut_off = True
    await settle(LEASE_MS / 1000 * 3)
    assert [frame["offset"] for frame in await two.messages()] == [1, 2, 3]
    one.ack("t", "g", 3)
    await settle(0.1)
    first.engine.join_again()
    await settle(LEASE_MS / 1000)
    assert await second.committed("t", "g") == 0
    assert await first.committed("t", "g") == 0
    two.ack("t", "g", 3)
    await settle(0.1)
    assert [await node.committed("t", "g") for node in town.nodes] == [3, 3]
    await publish(first, 4, first=4)
    await settle(2)
    assert sorted(payloads(one)[3:] + payloads(two)) == [4, 5, 6, 7]


@in_town(max_attempts=3, ack_timeout_ms=1_000)
async def test_attempts_count_across_nodes_and_the_letter_is_one(town: Town) -> None:
    first, _second = town.nodes
    await publish(first, 1)
    for attempt in (1, 2, 3):
        node = town.nodes[attempt % 2]
        peer = node.connect()
        await peer.subscribe("t", "g", BEGINNING)
        await settle(0.1)
        (message,) = await peer.messages()
        assert message["attempt"] == attempt
        peer.nack("t", "g", 1, reason=f"no {attempt}")
        peer.close()
        await settle(0.1)
    letters = [await node.bus.dead_letters.page("t") for node in town.nodes]
    assert [[(letter.attempts, letter.reason) for letter in each] for each in letters] == [[(3, "no 3")]] * 2
    assert await first.committed("t", "g") == 1


@in_town
async def test_a_move_on_one_node_takes_everything_from_members_of_all(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    await two.subscribe("t", "g", BEGINNING, max_inflight=2)
    await publish(first, 4)
    await settle(0.1)
    assert sorted(await one.offsets() + await two.offsets()) == [1, 2, 3, 4]
    await second.bus.groups.seek("t", "g", Start("offset", 1))
    await settle(0.1)
    assert sorted(await one.offsets() + await two.offsets()) == [1, 2, 3, 4]
    one.ack("t", "g", 4)
    two.ack("t", "g", 4)
    await settle(0.1)
    assert [await node.committed("t", "g") for node in town.nodes] == [4, 4]
    await first.bus.groups.seek("t", "g", Start("offset", 2))
    await settle(0.1)
    assert [await node.committed("t", "g") for node in town.nodes] == [4, 4]
    assert sorted(await one.offsets() + await two.offsets()) == [2, 3, 4]


@in_town
async def test_a_group_with_members_elsewhere_is_not_deleted(town: Town) -> None:
    first, second = town.nodes
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING)
    await settle(0.1)
    with pytest.raises(Conflict):
        await second.bus.groups.delete("t", "g")
    one.close()
    await settle(0.1)
    await second.bus.groups.delete("t", "g")
    await settle(0.1)
    assert [node.bus.groups.infos() for node in town.nodes] == [[], []]
    two = second.connect()
    await two.subscribe("t", "g", LATEST)
    await publish(first, 1)
    await settle(0.1)
    assert await two.offsets() == [1]


@in_town
async def test_two_nodes_that_make_a_group_at_once_agree_on_its_start(town: Town) -> None:
    first, second = town.nodes
    await publish(first, 3)
    await settle(0.1)
    one, two = first.connect(), second.connect()
    one.send({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": LATEST})
    two.send({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": LATEST})
    await settle(0.1)
    await publish(first, 1, first=4)
    await settle(0.1)
    assert sorted(payloads(one) + payloads(two)) == [4]


@in_town
async def test_an_event_reaches_whoever_accepts_it_wherever_that_is(town: Town) -> None:
    first, second = town.nodes
    apples, pears = first.connect(), second.connect()
    await apples.subscribe("t", "g", BEGINNING, filter={"key": "apple"}, max_inflight=50, ack="each")
    await pears.subscribe("t", "g", BEGINNING, filter={"key": "pear"}, max_inflight=50, ack="each")
    await settle(0.1)
    writer = first.connect()
    for n in range(1, 13):
        await writer.publish("t", n, key=("apple", "pear", "plum")[n % 3])
    await settle(0.5)
    assert sorted(payloads(apples)) == [3, 6, 9, 12]
    assert sorted(payloads(pears)) == [1, 4, 7, 10]
    for peer in (apples, pears):
        for frame in await peer.messages():
            peer.ack("t", "g", frame["offset"])
    await settle(0.1)
    assert [await node.committed("t", "g") for node in town.nodes] == [12, 12]


@in_town
async def test_keys_that_stick_keep_their_order_while_nodes_come_and_go(town: Town) -> None:
    first, _second = town.nodes
    await town.create("t", partitions=2)
    seen: list[tuple[str, int]] = []
    peers = [node.connect() for node in town.nodes]
    for peer in peers:
        await peer.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=4, ack="each")
    await settle(0.1)
    writer = first.connect()
    for n in range(40):
        await writer.publish("t", n, key=f"k{n % 5}")
    for turn in range(60):
        await settle(0.05)
        for peer in peers:
            for frame in await peer.messages():
                seen.append((frame["envelope"]["key"], frame["envelope"]["payload"]))
                peer.ack("t", "g", frame["offset"], frame["partition"])
        if turn == 10:
            third = await town.add()
            peers.append(third.connect())
            await peers[-1].subscribe("t", "g", sticky=True, max_inflight=4, ack="each")
    assert sorted(n for _, n in seen) == list(range(40))
    for key in {key for key, _ in seen}:
        of_key = [n for each, n in seen if each == key]
        assert of_key == sorted(of_key)


@in_town
async def test_keys_keep_their_order_when_an_event_is_refused_on_the_node_that_took_them_over(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=1, ack="each")
    await publish(second, 4, key="k")
    await settle(0.1)
    assert await one.offsets() == [1]
    await first.stop()
    await two.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=1, ack="each")
    await settle(LEASE_MS / 1000 * 3)
    assert await two.offsets() == [1]
    two.nack("t", "g", 1, delay_ms=1_000)
    await settle(0.5)
    assert await two.messages() == []
    seen = []
    for _ in range(4):
        await settle(1)
        for frame in await two.messages():
            seen.append(frame["offset"])
            two.ack("t", "g", frame["offset"])
    assert seen == [1, 2, 3, 4]


@in_town
async def test_what_only_another_node_accepts_now_goes_there_though_a_sticky_member_stays_here(town: Town) -> None:
    first, second = town.nodes
    sticky, left, other = first.connect(), first.connect(), second.connect()
    await sticky.subscribe("t", "g", BEGINNING, sticky=True, filter={"key": "x"})
    await left.subscribe("t", "g", BEGINNING, filter={"key": "y"})
    await first.connect().publish("t", 1, key="y")
    await settle(0.1)
    assert await left.offsets() == [1]
    await other.subscribe("t", "g", filter={"key": "y"})
    await settle(0.1)
    left.close()
    await settle(0.1)
    assert [(frame["offset"], frame["attempt"]) for frame in await other.messages()] == [(1, 2)]
    assert await sticky.messages() == []


@in_town
async def test_delayed_redeliveries_wait_on_whichever_node_has_them(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING)
    await publish(first, 1)
    await settle(0.1)
    one.nack("t", "g", 1, delay_ms=5_000)
    await settle(0.1)
    await two.subscribe("t", "g")
    one.close()  # the event goes back, and still has to wait
    await settle(4)
    assert await two.messages() == []
    await settle(1.5)
    assert [(frame["offset"], frame["attempt"]) for frame in await two.messages()] == [(1, 2)]


@in_town
async def test_lost_answers_lose_nothing(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=3, ack="each")
    await two.subscribe("t", "g", BEGINNING, max_inflight=3, ack="each")
    writer = second.connect()
    seen: list[int] = []
    for n in range(1, 31):
        await writer.publish("t", n)
        first.engine.lose_answers = n % 3 == 0
        for peer in (one, two):
            for frame in await peer.messages():
                seen.append(frame["offset"])
                peer.ack("t", "g", frame["offset"])
    first.engine.lose_answers = False
    for _ in range(50):
        await settle(0.2)
        for peer in (one, two):
            for frame in await peer.messages():
                seen.append(frame["offset"])
                peer.ack("t", "g", frame["offset"])
    assert sorted(seen) == list(range(1, 31))
    assert [await node.committed("t", "g") for node in town.nodes] == [30, 30]


@in_town
async def test_retention_on_one_node_lets_the_group_of_another_go_on(town: Town) -> None:
    first, second = town.nodes
    await publish(first, 10)
    one = second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    await settle(0.1)
    assert await one.offsets() == [1, 2]
    one.close()
    await first.log.trim("t", 0, 8)  # also of what was given back
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    await settle(0.1)
    assert await one.offsets() == [8, 9]
    assert [await node.committed("t", "g") for node in town.nodes] == [7, 7]
    one.ack("t", "g", 9)
    await settle(0.1)
    assert await one.offsets() == [10]
    assert [await node.committed("t", "g") for node in town.nodes] == [9, 9]


@in_town
async def test_a_start_by_time_holds_on_every_node(town: Town) -> None:
    first, second = town.nodes
    await publish(first, 3)
    await settle(10)
    moment = town.clock.wall_ms()
    await publish(second, 3, first=4)
    one = second.connect()
    await one.subscribe("t", "g", {"kind": "timestamp", "value": moment})
    await settle(0.1)
    assert payloads(one) == [4, 5, 6]


@in_town
async def test_what_turns_out_to_be_settled_is_not_given_back(town: Town) -> None:
    """A write that settles the event is in doubt while its member leaves; its news come before it is given back."""
    first, _ = town.nodes
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING)
    await publish(first, 1)
    await settle(0.1)
    group = first.bus.topics.get("t").groups["g"]
    (position,) = group.positions.values()
    shared, event = position.shared, position.open[1]
    shared.writes[1_000] = ClaimWrite(PositionWrite(position), settled=frozenset({1}))
    one.close()
    shared.return_to_group(event)
    shared.on_stored(1_000, town.clock.now_ms(), to_wall=0)
    assert not shared.returning
    assert not position.open


@in_town
async def test_an_event_that_expired_goes_to_no_member_of_any_node(town: Town) -> None:
    first, second = town.nodes
    await publish(first, 3, ttl_ms=1_000)
    await publish(first, 3, first=4)
    await settle(2)
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    await two.subscribe("t", "g", BEGINNING, max_inflight=2)
    await settle(0.2)
    assert sorted(payloads(one) + payloads(two)) == [4, 5, 6]
    for peer in (one, two):
        for frame in await peer.messages():
            peer.ack("t", "g", frame["offset"])
    await settle(0.2)
    assert [await node.committed("t", "g") for node in town.nodes] == [6, 6]


@in_town(ack_timeout_ms=1_000)
async def test_a_node_that_does_not_know_whether_its_lease_is_its_own_delivers_nothing(town: Town) -> None:
    """It was stopped, or cut off, for longer than its lease: what it holds may be someone else's by now."""
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=5)
    await publish(first, 1)
    await settle(0.1)
    assert payloads(one) == [1]
    first.engine.cut_off = True
    await settle((LEASE_MS + 500) / 1_000)
    before = len(payloads(one))
    await two.subscribe("t", "g", BEGINNING, max_inflight=5)
    await settle(3 * LEASE_MS / 1_000)
    assert payloads(two)[:1] == [1]  # the other node has taken it over
    assert len(payloads(one)) == before
    for frame in await two.messages():
        two.ack("t", "g", frame["offset"])
    first.engine.join_again()
    await settle(2 * LEASE_MS / 1_000)
    assert len(payloads(one)) == before
    await publish(first, 1, first=2)
    await settle(1)
    assert 2 in payloads(one) + payloads(two)


@in_town(ack_timeout_ms=1_000)
async def test_a_node_whose_server_was_away_goes_on_with_what_it_holds(town: Town) -> None:
    """No node could take its lease away meanwhile: it delivers again once its lease is certain."""
    first, second = town.nodes
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=5)
    await publish(first, 1)
    await settle(0.1)
    for node in (first, second):
        node.engine.cut_off = True
    await settle(2 * LEASE_MS / 1_000)
    before = len(payloads(one))
    for node in (first, second):
        node.engine.join_again()
    await settle(2)
    assert len(payloads(one)) > before


@in_town
async def test_an_attempt_after_the_first_is_stored_before_it_is_made(town: Town) -> None:
    """A node that dies cannot have made attempts of which the others know nothing: `maxAttempts` is never exceeded."""
    first, second = town.nodes
    await town.create("t", maxAttempts=3)
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING)
    await publish(second, 1)
    await settle(0.1)
    one.nack("t", "g", 1)
    await settle(0.1)
    assert [frame["attempt"] for frame in one.got] == [1, 2]
    first.engine.cut_off = True
    one.nack("t", "g", 1)
    await settle(1)
    assert len(one.got) == 2, "the third attempt could not be stored"
    first.kill()
    two = second.connect()
    await two.subscribe("t", "g", BEGINNING)
    await settle(3 * LEASE_MS / 1000)
    assert [frame["attempt"] for frame in two.got] == [3]
    two.nack("t", "g", 1)
    await settle(1)
    assert len(two.got) == 1
    (letter,) = await second.bus.dead_letters.page("t")
    assert letter.attempts == 3
