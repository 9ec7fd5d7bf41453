"""Lists of topics and groups, scopes and the program's checker: each can only refuse, and deny beats allow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from mainspring.bus import BadFrame, Caller, Forbidden
from mainspring.bus.access.access import PATIENCE_S
from tests.support.access import make_token
from tests.support.bus import BEGINNING, Peer, World, in_virtual_time, settle


def caller(agent: str, *scopes: str, **options: Any) -> Caller:
    return Caller(agent, sid=f"s-{agent}", scopes=make_token(agent, *scopes)[1].scopes, **options)


def connect(world: World, who: Caller) -> Peer:
    return Peer(world.bus, who, world.journal)  # type: ignore[arg-type]


async def refusal(peer: Peer, frame: dict[str, Any]) -> str:
    answer = await peer.ask(frame)
    return f"{answer['type']} {answer.get('code', '')}".strip()


def publish(topic: str) -> dict[str, Any]:
    return {"type": "PUBLISH", "topic": topic, "payload": 1}


def subscribe(topic: str, group: str = "g") -> dict[str, Any]:
    return {"type": "SUBSCRIBE", "topic": topic, "group": group}


@in_virtual_time
async def test_deny_beats_allow_and_names_may_be_patterns(world: World) -> None:
    await world.create("t", publishACL={"allow": ["team.**"], "deny": ["team.*.intern"]})
    may = {"team": True, "team.a": True, "team.a.intern": False, "team.a.b.intern": True, "other": False}
    for agent, allowed in may.items():
        got = await refusal(world.connect(agent), publish("t"))
        assert got == ("PUBLISHED" if allowed else "ERROR forbidden"), agent
    assert await refusal(world.connect(None), publish("t")) == "ERROR forbidden"


@in_virtual_time
async def test_a_list_with_half_a_wildcard_is_refused(world: World) -> None:
    for lists in ({"publishACL": ["al*"]}, {"subscribeACL": {"deny": ["*x"]}}, {"groupACL": {"b*": ["a"]}}):
        with pytest.raises(BadFrame):
            await world.create("t", **lists)


@in_virtual_time
async def test_a_group_may_have_a_list_of_its_own(world: World) -> None:
    await world.create("t", groupACL={"billing": ["alice"], "audit.*": {"deny": ["bob"]}})
    alice, bob = world.connect("alice"), world.connect("bob")
    assert await refusal(alice, subscribe("t", "billing")) == "OK"
    assert await refusal(bob, subscribe("t", "billing")) == "ERROR forbidden"
    assert await refusal(bob, subscribe("t", "audit.eu")) == "ERROR forbidden"
    assert await refusal(bob, subscribe("t", "own")) == "OK"
    assert await refusal(world.connect(None), subscribe("t", "billing")) == "ERROR forbidden"


@in_virtual_time
async def test_group_lists_survive_a_restart(world: World) -> None:
    await world.create("t", groupACL={"billing": ["alice"]})
    await world.kill()
    assert await refusal(world.connect("bob"), subscribe("t", "billing")) == "ERROR forbidden"


@pytest.mark.parametrize("action", ["publish", "subscribe"])
def test_dead_letters_need_the_rights_on_their_topic(action: str) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.create("secret", publishACL=["alice"], subscribeACL=["alice"], groupACL={"g": ["alice", "carol"]})
        alice, bob = world.connect("alice"), world.connect("bob")
        frame = publish("secret.DLQ") if action == "publish" else subscribe("secret.DLQ")
        assert await refusal(bob, frame) == "ERROR forbidden"
        assert await refusal(alice, frame) in ("PUBLISHED", "OK")
        nested = publish("secret.DLQ.DLQ") if action == "publish" else subscribe("secret.DLQ.DLQ")
        assert await refusal(bob, nested) == "ERROR forbidden"
        if action == "publish":
            with pytest.raises(Forbidden):
                await world.bus.read("secret.DLQ", 0, 1, 1, agent="bob")

    story()


@in_virtual_time
async def test_a_scope_on_the_dead_letters_alone_is_no_right_on_them(world: World) -> None:
    await world.connect().publish("orders.DLQ", 1)
    sly = connect(world, caller("sly", "subscribe:orders.DLQ", "subscribe:orders.*", "publish:orders.*"))
    assert await refusal(sly, subscribe("orders.DLQ")) == "ERROR forbidden"
    assert await refusal(sly, publish("orders.DLQ")) == "ERROR forbidden"
    honest = connect(world, caller("honest", "subscribe:orders"))
    assert await refusal(honest, subscribe("orders.DLQ")) == "OK"


@in_virtual_time
async def test_scopes_bound_what_a_token_may_do(world: World) -> None:
    peer = connect(world, caller("alice", "publish:orders.*", "subscribe:audit"))
    assert await refusal(peer, publish("orders.eu")) == "PUBLISHED"
    assert await refusal(peer, publish("audit")) == "ERROR forbidden"
    assert await refusal(peer, subscribe("audit")) == "OK"
    assert await refusal(peer, subscribe("orders.eu")) == "ERROR forbidden"
    assert await refusal(peer, {"type": "PUBLISH_BATCH", "topic": "x", "events": [{"payload": 1}]}) == "ERROR forbidden"
    schedule = {"type": "SCHEDULE", "name": "s", "topic": "x", "payload": 1, "every": 1000}
    assert await refusal(peer, schedule) == "ERROR forbidden"
    assert not (await world.log.bounds("x"))


@in_virtual_time
async def test_lists_hold_for_tokens_too_and_an_admin_needs_no_allow_list(world: World) -> None:
    await world.create("t", publishACL={"allow": ["alice"], "deny": ["mallory"]})
    assert await refusal(connect(world, caller("alice", "publish:**")), publish("t")) == "PUBLISHED"
    assert await refusal(connect(world, caller("bob", "publish:**")), publish("t")) == "ERROR forbidden"
    assert await refusal(connect(world, caller("root", "admin")), publish("t")) == "PUBLISHED"
    assert await refusal(connect(world, caller("mallory", "admin")), publish("t")) == "ERROR forbidden"
    assert await refusal(connect(world, caller("root", "admin")), publish("system.bus.audit")) == "ERROR forbidden"


@in_virtual_time
async def test_an_expired_token_may_nothing_on_a_connection_that_is_still_open(world: World) -> None:
    peer = connect(world, caller("alice", "publish:**", expires_ms=world.clock.wall_ms() + 1000))
    assert await refusal(peer, publish("t")) == "PUBLISHED"
    await settle(1.1)
    assert await refusal(peer, publish("t")) == "ERROR forbidden"


@in_virtual_time
async def test_who_published_cannot_be_forged(world: World) -> None:
    peer = connect(world, caller("alice", "publish:**"))
    forged = {"agent_id": "root", "sid": "x", "scopes": "admin", "ct": "json"}
    await peer.publish("t", 1, headers=forged)
    await peer.publish("t", 2)
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 3, "headers": forged}]})
    await peer.publish("t", 4, headers=forged, delay_ms=50)
    await peer.ask({"type": "SCHEDULE", "name": "s", "topic": "t", "payload": 5, "every": 1000, "headers": forged})
    await settle(1.5)
    reader = world.connect()
    await reader.subscribe("t", "g", BEGINNING)
    got = {frame["envelope"]["payload"]: frame["envelope"]["headers"] for frame in await reader.messages()}
    proven = {"agent_id": "alice", "sid": "s-alice"}
    assert got[2] == proven
    assert got[1] == got[3] == got[4] == got[5] == {"ct": "json", **proven}


@in_virtual_time
async def test_without_tokens_headers_stay_as_they_were_sent(world: World) -> None:
    await world.connect("bob").publish("t", 1, headers={"agent_id": "alice", "x": "1"})
    reader = world.connect()
    await reader.subscribe("t", "g", BEGINNING)
    assert (await reader.message())["envelope"]["headers"] == {"agent_id": "alice", "x": "1"}


@in_virtual_time
async def test_a_schedule_belongs_to_those_who_may_publish_to_its_topic(world: World) -> None:
    await world.create("t", publishACL=["alice"])
    alice, bob = world.connect("alice"), world.connect("bob")
    schedule = {"type": "SCHEDULE", "name": "s", "topic": "t", "payload": 1, "every": 60_000}
    assert await refusal(alice, schedule) == "OK"
    assert await refusal(bob, {"type": "UNSCHEDULE", "name": "s"}) == "ERROR forbidden"
    assert await refusal(bob, {**schedule, "topic": "own"}) == "ERROR forbidden"
    assert await refusal(alice, {"type": "UNSCHEDULE", "name": "s"}) == "OK"


@in_virtual_time
async def test_a_subscription_ends_when_the_list_no_longer_allows_it(world: World) -> None:
    alice, bob, watcher = world.connect("alice"), world.connect("bob"), world.connect("bob")
    await bob.subscribe("t", "g")
    await watcher.subscribe("t.DLQ", "g")
    await world.create("t", subscribeACL=["alice"])
    await settle()
    for peer, topic in ((bob, "t"), (watcher, "t.DLQ")):
        assert (peer.got[0]["type"], peer.got[0]["code"], peer.got[0]["topic"]) == ("ERROR", "forbidden", topic)
        peer.got.clear()
    await alice.publish("t", 1)
    assert await bob.messages() == []
    assert await refusal(bob, {"type": "ACK", "topic": "t", "partition": 0, "group": "g", "offset": 1}) == (
        "ERROR not_subscribed"
    )


@in_virtual_time(max_subscriptions=2)
async def test_a_connection_holds_so_many_subscriptions_and_no_more(world: World) -> None:
    peer = world.connect()
    for topic in ("a", "b"):
        assert await refusal(peer, subscribe(topic)) == "OK"
    assert await refusal(peer, subscribe("c")) == "ERROR limit_reached"
    assert await refusal(peer, subscribe("a")) == "OK", "a new window for one it has"
    assert await refusal(peer, {"type": "UNSUBSCRIBE", "topic": "a", "group": "g"}) == "OK"
    assert await refusal(peer, subscribe("c")) == "OK"


# -- the program's checker


class Asked:
    """A checker that remembers what it was asked, and answers as told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str | None]] = []

    def __call__(self, topic: str, action: str, who: Mapping[str, Any]) -> Any:
        self.asked.append((topic, action, who["agent"]))
        return self.answer(topic, action, who) if callable(self.answer) else self.answer


def install(world: World, checker: Any) -> None:
    world.bus.access._checker = checker


@in_virtual_time
async def test_a_checker_is_told_topic_action_and_who(world: World) -> None:
    seen: list[Any] = []

    def checker(topic: str, action: str, who: Mapping[str, Any]) -> bool:
        seen.append((topic, action, dict(who)))
        return topic != "no"

    install(world, checker)
    peer = connect(world, caller("alice", "publish:**", "subscribe:**"))
    assert await refusal(peer, publish("yes")) == "PUBLISHED"
    assert await refusal(peer, publish("no")) == "ERROR forbidden"
    assert await refusal(peer, subscribe("no.DLQ")) == "ERROR forbidden"
    scopes = ("publish:**", "subscribe:**")
    assert seen[0] == ("yes", "publish", {"agent": "alice", "scopes": scopes})
    assert seen[2] == ("no", "subscribe", {"agent": "alice", "scopes": scopes})


@in_virtual_time
async def test_a_checker_that_takes_its_time_keeps_the_order_of_a_connection(world: World) -> None:
    async def checker(topic: str, action: str, who: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0.5 if topic == "slow" else 0.1)
        return topic != "no"

    install(world, checker)
    peer = world.connect("alice")
    for corr, topic in enumerate(["slow", "no", "fast", "slow", "fast"]):
        peer.send({**publish(topic), "corr": corr})
    peer.send({**subscribe("fast"), "corr": 5})
    await settle(5)
    answers = [frame for frame in peer.got if frame["type"] != "MESSAGE"]
    assert [frame["corr"] for frame in answers] == [0, 1, 2, 3, 4, 5]
    assert [frame["type"] for frame in answers] == ["PUBLISHED", "ERROR", "PUBLISHED", "PUBLISHED", "PUBLISHED", "OK"]


@in_virtual_time
async def test_an_answer_holds_for_a_while_and_is_then_asked_for_again(world: World) -> None:
    checker = Asked(True)
    install(world, checker)
    peer = world.connect("alice")
    for _ in range(3):
        await peer.publish("t")
    assert len(checker.asked) == 1
    checker.answer = False
    await settle(1.1)
    assert await refusal(peer, publish("t")) == "ERROR forbidden"
    assert len(checker.asked) == 2


@in_virtual_time
async def test_a_checker_that_fails_hangs_or_says_something_else_refuses(world: World) -> None:
    async def fails(*_: Any) -> bool:
        raise RuntimeError("broken")

    async def hangs(*_: Any) -> bool:
        await asyncio.sleep(PATIENCE_S * 100)
        return True

    def raises(*_: Any) -> bool:
        raise RuntimeError("broken")

    for number, checker in enumerate((raises, fails, hangs, Asked("yes"), Asked(None), Asked(1))):
        install(world, checker)
        peer = world.connect("alice")
        peer.send(publish(f"t{number}"))
        await settle(PATIENCE_S + 1)
        assert [frame.get("code") for frame in peer.got] == ["forbidden"], checker


@in_virtual_time
async def test_the_nodes_own_program_is_not_asked_about(world: World) -> None:
    checker = Asked(False)
    install(world, checker)
    await world.bus.publish("t", b"1")
    assert checker.asked == []
    with pytest.raises(Forbidden):
        await world.bus.publish("t", b"1", agent=Caller("alice"))


@in_virtual_time
async def test_a_connection_that_closes_while_the_checker_thinks_publishes_nothing(world: World) -> None:
    async def checker(*_: Any) -> bool:
        await asyncio.sleep(1)
        return True

    install(world, checker)
    peer = world.connect("alice")
    peer.send(publish("t"))
    await settle(0.1)
    peer.close()
    await settle(2)
    assert not (await world.log.bounds("t"))
