"""What a user of Temporal expects of a data converter: the program has the key, and nobody else can read a payload.

Not on disk, not on the wire, not through the node's own answers. A key can be changed at any time: what an old one
encoded is still read, for as long as the codec has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import App, Ask, CodecError, Effect, Event, Fail, Perform, Publish, WaitEvent, WaitSignal, connect
from mainspring.client import Client, NodeRefused, SyncClient
from mainspring.log import LogExport
from mainspring.tasks import TaskContext, Worker
from mainspring.testing import serving, simulate
from tests.expectations.conftest import Start
from tests.support.running_node import RealNode, RunningNode, SimulatedNode

SECRET = "four-of-swords"


class Ring:
    """Not a cipher, but like one: another text each time, nothing readable, and a key that must be there."""

    def __init__(self, *keys: str) -> None:
        self._keys = set(keys)
        self.key_id = keys[-1]

    def encode(self, data: bytes) -> bytes:
        salt = os.urandom(8)
        return salt + bytes(byte ^ salt[at % 8] ^ 0x5A for at, byte in enumerate(data))

    def decode(self, data: bytes, key_id: str) -> bytes:
        if key_id not in self._keys:
            raise KeyError(key_id)
        salt, rest = data[:8], data[8:]
        return bytes(byte ^ salt[at % 8] ^ 0x5A for at, byte in enumerate(rest))


def client(node: RunningNode, codec: Ring) -> Client:
    if isinstance(node, SimulatedNode):
        return node.world.client(codec=codec)
    assert isinstance(node, RealNode)
    return connect(node.url, codec=codec)


async def at_rest(node: RunningNode, folder: Path) -> bytes:
    """Everything that is stored."""
    if isinstance(node, SimulatedNode):
        lines = [line async for line in LogExport(node.world.node.log.engine).lines()]
        return b"".join(lines)
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


class Charge(Effect[str]):
    card: str


class Card(msgspec.Struct):
    number: str


def bank(*keys: str) -> App:
    app = App("bank", codec=Ring(*keys))

    @app.command("Card.Add")
    async def add(card: Card, ctx: Any) -> dict[str, str]:
        await ctx.publish("cards", card)
        await ctx.publish("cards.later", card, delay="1h")
        found = await ctx.send("query", "Card.Show", {"number": card.number})
        return {"shown": found}

    @app.query("Card.Show")
    def show(card: Card, ctx: Any) -> str:
        return f"card {card.number}"

    @app.consumer("cards")
    async def take(event: Event[Card]) -> None:
        assert await event.ask("query", "Card.Show", event.payload) == f"card {event.payload.number}"
        event.publish("cards.taken", event.payload)
        event.start_run(use, event.payload, id="used")

    @app.consumer("cards.bad", max_attempts=1)
    async def refuse(event: Event[Card]) -> None:
        raise ValueError("no such card")

    @app.handles(Charge)
    async def charge(effect: Charge, ctx: Any) -> str:
        return f"charged {effect.card}"

    @app.run
    async def use(card: Card, perform: Perform) -> str:
        @perform.query
        def number() -> str:
            return card.number

        @perform.update
        def change(to: str) -> str:
            return f"{card.number} to {to}"

        await perform.progress({"card": card.number})
        charged = await perform(Charge(card.number))
        assert charged == f"charged {card.number}"
        assert await perform(Ask("Card.Show", {"number": card.number}, kind="query")) == f"card {card.number}"
        await perform(Publish("cards.used", {"number": card.number}))
        assert await perform.task(stamp, card.number) == f"stamped {card.number}"
        signal = await perform(WaitSignal("go"))
        return f"{card.number} {signal}"

    @app.run
    async def wait(perform: Perform) -> Any:
        event = await perform(WaitEvent("cards.used", {"number": SECRET}))
        return event["payload"]

    @app.task
    async def stamp(number: str, context: TaskContext) -> str:
        context.progress(f"at {number}")
        return f"stamped {number}"

    return app


async def test_nothing_of_the_program_can_be_read_without_its_codec(start: Start, tmp_path: Path) -> None:
    app = bank("k1")
    async with start(app) as node, client(node, Ring("k1")) as bus:
        await bus.start_run("wait", id="waiting")
        assert await bus.command("Card.Add", Card(SECRET)) == {"shown": f"card {SECRET}"}
        await node.until(lambda: _has_state(bus, "used", "running"))
        assert await bus.query_run("used", "number") == SECRET
        assert await bus.update_run("used", "change", SECRET) == f"{SECRET} to {SECRET}"
        assert (await bus.outcome("waiting", timeout="1m")).value == {"number": SECRET}  # type: ignore[union-attr]
        await bus.schedule("cards", "cards.scheduled", Card(SECRET), every="1h")
        await bus.publish("cards.bad", Card(SECRET))
        await node.until(lambda: _letters(bus, "cards.bad"))
        assert [each.payload async for each in bus.dead_letters("cards.bad")] == [{"number": SECRET}]
        assert [each["payload"] for each in await bus.schedules()] == [{"number": SECRET}]
        assert SECRET.encode() not in await at_rest(node, tmp_path)
        await bus.signal("used", "go", f"with {SECRET}")
        assert (await bus.outcome("used", timeout="1m")).value == f"{SECRET} with {SECRET}"  # type: ignore[union-attr]
        assert [each.payload async for each in bus.replay("cards.taken", type=Card)] == [Card(SECRET)]
        await node.bus.cancel("waiting", SECRET)
        assert SECRET.encode() not in await at_rest(node, tmp_path)
        await _stranger_sees_that_it_is_encoded(node)


async def _has_state(bus: Client, run: str, state: str) -> bool:
    try:
        return (await bus.run_info(run)).progress is not None and (await bus.run_info(run)).state == state
    except Fail:
        return False


async def _letters(bus: Client, topic: str) -> list[Any]:
    try:
        return [each async for each in bus.dead_letters(topic)]
    except NodeRefused:
        return []


async def _stranger_sees_that_it_is_encoded(node: RunningNode) -> None:
    bus = node.bus
    for topic in ("cards", "cards.taken", "cards.used"):
        (event,) = [each async for each in bus.replay(topic)]
        assert event.payload["key"] == "k1"
        assert isinstance(event.payload["$encoded"], str)
    assert (await bus.query("Card.Show", {"number": "1"}))["key"] == "k1", "also the answer to a plain question"
    told = [
        await bus.query("Run.History", {"id": "used"}),
        await bus.query("Run.Outcome", {"id": "used"}),
        await bus.query("Run.List"),
        [each async for each in bus.dead_letters("cards.bad")],
        await bus.schedules(),
    ]
    assert SECRET not in repr(told)
    assert told[1]["value"].keys() == {"$encoded", "key"}
    assert [each["effect"] for each in told[0]["journal"]][:2] == ["Charge", "Ask"], "what it did is no secret"


async def test_the_verbs_of_the_app_itself_use_the_codec(start: Start) -> None:
    app = bank("k1")
    async with start(app) as node:
        await app.publish("notes", {"text": SECRET})
        assert await app.command("Card.Add", Card(SECRET)) == {"shown": f"card {SECRET}"}
        async for event in app.follow("notes", since="beginning"):
            assert event.payload == {"text": SECRET}
            break
        (stored,) = await node.events("notes")
        assert stored["key"] == "k1"


async def test_plain_data_is_taken_as_it_is(start: Start) -> None:
    async with start(bank("k1")) as node, client(node, Ring("k1")) as bus:
        await node.publish("cards", {"number": "plain"})
        await node.until(lambda: _has_state(bus, "used", "running"))
        assert await bus.command("Card.Add", {"number": "1"}) == {"shown": "card 1"}


async def test_keys_are_changed_while_a_run_waits(start: Start) -> None:
    async with start(bank("k1")) as node:
        async with client(node, Ring("k1")) as bus:
            await bus.publish("cards", Card(SECRET))
            await node.until(lambda: _has_state(bus, "used", "running"))
        await node.restart(bank("k1", "k2"))
        async with client(node, Ring("k1", "k2")) as bus:
            await bus.signal("used", "go", "now")
            assert (await bus.outcome("used", timeout="1m")).value == f"{SECRET} now"  # type: ignore[union-attr]
        history = await node.query("Run.History", {"id": "used"})
        assert history["run"]["value"]["key"] == "k2"


async def test_a_run_whose_key_is_gone_is_blocked_until_it_is_back() -> None:
    async with simulate(bank("k1")) as world:
        await world.publish("cards", Card(SECRET))
        await world.until(lambda: [each for each in world.runs("use") if each.state == "running"])
        await world.restart(app=bank("k2"))
        await world.until(lambda: world.run("used").state == "blocked")
        await world.restart(app=bank("k1", "k2"))
        await world.until(lambda: world.run("used").state == "running")
        await world.send("command", "Run.Signal", {"id": "used", "name": "go", "value": "now"})
        assert (await world.outcome("used")).value == f"{SECRET} now"  # type: ignore[union-attr]


async def test_an_event_whose_key_is_gone_becomes_a_dead_letter_and_is_read_when_the_key_is_back(start: Start) -> None:
    async with start(bank("k2")) as node, client(node, Ring("k1")) as former, client(node, Ring("k1", "k2")) as bus:
        await former.publish("cards.bad", Card(SECRET))
        (letter,) = await node.until(lambda: _letters(node.bus, "cards.bad"))
        assert "'k1'" in letter.reason
        assert SECRET not in letter.reason
        assert letter.payload["key"] == "k1"
        assert [each.payload async for each in bus.dead_letters("cards.bad")] == [{"number": SECRET}]
        async with client(node, Ring("k2")) as poor:
            subscription = poor.subscribe("cards.bad", group="other")
            event = await subscription.get(timeout="1m")
            with pytest.raises(CodecError, match="'k1'"):
                _ = event.payload
            await subscription.close()


async def test_a_durable_command_that_is_sent_again_is_the_same_command(start: Start) -> None:
    app = App("bank", codec=Ring("k1"))
    done: list[str] = []

    @app.command("Pay.Once", durable=True)
    async def pay(card: Card, ctx: Any) -> str:
        done.append(card.number)
        return f"paid with {card.number}"

    async with start(app) as node, client(node, Ring("k1")) as bus:
        for _ in range(2):
            assert await bus.command("Pay.Once", Card(SECRET), id="pay-1") == f"paid with {SECRET}"
        with pytest.raises(Fail) as refused:
            await bus.command("Pay.Once", Card("another"), id="pay-1")
        assert refused.value.code == 409
    assert done == [SECRET]


async def test_a_schema_is_held_to_what_is_encoded(start: Start) -> None:
    app = App("bank", codec=Ring("k1"))

    @app.schema("cards")
    class Known(msgspec.Struct):
        number: str

    async with start(app) as node, client(node, Ring("k1")) as bus:
        await bus.publish("cards", Known(SECRET))
        with pytest.raises(NodeRefused) as refused:
            await bus.publish("cards", {"number": 4})
        assert refused.value.code == "schema_mismatch"
        async with client(node, Ring("k9")) as other:
            with pytest.raises(NodeRefused, match="'k9'"):
                await other.publish("cards", Known(SECRET))
        assert [each.payload async for each in bus.replay("cards")] == [{"number": SECRET}]


async def test_a_node_without_the_codec_passes_on_what_it_cannot_read(start: Start) -> None:
    app = App("plain")

    @app.schema("cards")
    class Known(msgspec.Struct):
        number: str

    async with start(app) as node, client(node, Ring("k1")) as bus:
        await bus.publish("cards", Known(SECRET))
        assert [each.payload async for each in bus.replay("cards", type=Known)] == [Known(SECRET)]
        assert [each.payload["key"] async for each in node.bus.replay("cards")] == ["k1"]


async def test_upcasters_get_what_was_encoded() -> None:
    app, seen = App("bank", codec=Ring("k1")), []

    @app.schema("cards")
    class Known(msgspec.Struct):
        number: str
        kind: str = "debit"

    @app.upcaster("cards", 1)
    def to_second(card: dict[str, Any]) -> dict[str, Any]:
        return {**card, "kind": "credit"}

    @app.consumer("cards")
    async def take(event: Event[Any]) -> None:
        seen.append(event.payload)

    async with simulate(app) as world:
        await world.publish("cards", {"number": SECRET})
        await world.settle()
        async with world.client() as bus:
            (event,) = [each async for each in bus.replay("cards")]
    assert seen == [{"number": SECRET, "kind": "credit"}]
    assert event.payload["key"] == "k1"


async def test_requests_and_replies_between_clients(start: Start) -> None:
    async with start(App("bank")) as node, client(node, Ring("k1")) as bus:
        answering = bus.respond("quotes", _quote, group="quoter")
        assert await bus.request("quotes", {"for": SECRET}, timeout="1m") == {"quote": SECRET}
        assert SECRET not in repr([each.payload async for each in node.bus.replay("quotes")])
        assert SECRET not in repr([each.payload async for each in node.bus.replay("quotes.replies")])
        await answering.stop()


async def _quote(event: Any) -> dict[str, str]:
    return {"quote": event.payload["for"]}


async def test_tasks_of_a_worker_process_are_encoded_both_ways() -> None:
    app = App("bank", codec=Ring("k1"))

    @app.task
    async def stamp(number: str, context: TaskContext) -> list[str]:
        context.progress(number)
        return [number]

    async with serving(App("node")) as node, connect(node.url) as bus:
        app.use(bus)
        handle = await stamp.enqueue(SECRET)
        more = await stamp.enqueue_many([(SECRET,)])
        worker = Worker(app.tasks)
        await worker.start()
        assert await handle.result(timeout="30s") == [SECRET]
        assert await more[0].result(timeout="30s") == [SECRET]
        assert await handle.state() == "done"
        for topic in (stamp.topic, stamp.topics.results):
            stored = [each.payload async for each in bus.replay(topic)]
            assert stored
            assert SECRET not in repr(stored)
        await worker.stop(0)


def test_a_blocking_client_has_the_codec_too(tmp_path: Path) -> None:
    import asyncio

    async def story() -> None:
        async with serving(bank("k1"), data=str(tmp_path)) as node:
            await asyncio.to_thread(use, node.url)

    def use(url: str) -> None:
        with SyncClient(url, codec=Ring("k1")) as bus, SyncClient(url) as stranger:
            bus.publish("notes", SECRET)
            assert [each.payload for each in bus.replay("notes")] == [SECRET]
            assert bus.query("Card.Show", Card("1")) == "card 1"
            assert "$encoded" in next(iter(stranger.replay("notes"))).payload

    asyncio.run(story())


def vault() -> App:
    app = App("vault", codec=Ring("k1"))
    app.command("Vault.Put", isolation="process")(put_in_process)

    @app.query("Card.Show")
    async def show(card: Card, ctx: Any) -> str:
        return f"card {card.number}"

    return app


async def put_in_process(card: Card, ctx: Any) -> str:
    await ctx.publish("vault", card)
    found: str = await ctx.send("query", "Card.Show", card)
    return f"{found} in {os.getpid()}"


async def test_a_handler_in_a_process_of_its_own_gets_what_was_encoded() -> None:
    async with serving(vault()) as node, connect(node.url, codec=Ring("k1")) as bus, connect(node.url) as stranger:
        answer = await bus.command("Vault.Put", Card(SECRET))
        assert answer.startswith(f"card {SECRET} in ")
        assert not answer.endswith(str(os.getpid()))
        assert "$encoded" in await stranger.command("Vault.Put", {"number": "1"})
        assert SECRET not in repr([each.payload async for each in stranger.replay("vault")])


@pytest.mark.parametrize(
    ("given", "why"), [(object(), "no method encode"), (type("C", (), {"encode": len, "decode": len})(), "key_id")]
)
def test_what_is_no_codec_is_refused_where_it_is_given(given: Any, why: str) -> None:
    for make in (lambda: App("bank", codec=given), lambda: connect("ws://127.0.0.1:1", codec=given)):
        with pytest.raises(Exception, match=why):
            make()
