"""Where messages go, and what links them."""

from __future__ import annotations

import asyncio
import random
import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from mainspring import App, Fail, MainspringError
from mainspring.kernel import WaitsForItself
from mainspring.loop import VirtualClock
from tests.support.kernel import Worker, booted, command, encoded, message, ping, query, said, served, shape, virtual


@virtual
async def test_a_command_and_a_query_go_to_exactly_one_actor(clock: VirtualClock) -> None:
    """Checklist 59, 60, 62: looked up by kind and type; a query as a command."""
    app, went = App("one"), []
    app.command("One.Do")(lambda data, ctx: went.append("command"))
    app.query("One.Ask")(lambda data, ctx: went.append("query"))
    app.query("One.Do")(lambda data, ctx: went.append("query of the same name"))
    async with booted(app, clock) as kernel:
        await kernel.ask("command", "One.Do", {})
        await kernel.ask("query", "One.Ask", {})
        await kernel.ask("query", "One.Do", {})
        assert went == ["command", "query", "query of the same name"]
        for kind, type in (("command", "One.Ask"), ("query", "Memory.Set"), ("command", "Syscall.Ping")):
            with pytest.raises(Fail) as caught:
                await kernel.ask(kind, type, {})
            assert (caught.value.code, caught.value.type) == (404, "Sys.RoutingError")


@virtual
async def test_a_routing_error_is_answered_once_and_not_tried_again(clock: VirtualClock) -> None:
    """Checklist 61, 28, 67."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        request = command("No.Such", {"any": 1}, correlation="flow")
        answer = await client.call(request)
        assert (answer["type"], answer["data"]["code"]) == ("Sys.RoutingError", 404)
        assert answer["data"]["requestType"] == "No.Such"
        assert answer["metadata"]["correlation"] == "flow"
        await asyncio.sleep(100)
        assert await client.fence() == []
        assert site.kernel.liveness()["inFlight"] == 0


@virtual
async def test_whoever_mistook_a_type_is_told_the_likely_one(clock: VirtualClock) -> None:
    app = App("shop")
    app.command("Order.Place")(lambda data, ctx: None)
    meant = {
        ("command", "Order.Plac"): "perhaps Order.Place is meant; ",
        ("command", "Oder.Place"): "perhaps Order.Place is meant; ",
        ("query", "Order.Place"): "Order.Place is a command; ",
        ("command", "Syscall.Ping"): "Syscall.Ping is a query; ",
        ("command", "Quite.Different"): "",
        ("command", "Order." + "Place" * 100): "",
    }
    async with booted(app, clock) as kernel:
        for (kind, type), likely in meant.items():
            with pytest.raises(Fail) as caught:
                await kernel.ask(kind, type, {})
            assert caught.value.remedy == f"{likely}`mainspring describe` lists what this node handles"


@virtual
async def test_two_functions_for_one_type_are_named(clock: VirtualClock) -> None:
    app = App("shop")

    async def place(data: dict[str, int], ctx: Any) -> None: ...
    async def place_again(data: dict[str, int], ctx: Any) -> None: ...

    app.command("Order.Place")(place)
    app.command("Order.Place")(place_again)
    with pytest.raises(MainspringError, match=r"command:Order\.Place: .*place \(.* and .*place_again \(") as refused:
        async with booted(app, clock):
            pass
    for function in (place, place_again):
        assert f"{__file__}:{function.__code__.co_firstlineno})" in refused.value.message


class Plain:
    """A class without declared members."""

    def __init__(self, sku: str) -> None:
        self.sku = sku


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@virtual
async def test_a_class_that_json_knows_nothing_of_is_refused_where_it_is_declared(clock: VirtualClock) -> None:
    async def takes(data: Plain, ctx: Any) -> None: ...
    async def gives(data: dict[str, int], ctx: Any) -> Plain: ...

    for function in (takes, gives):
        with pytest.raises(MainspringError, match="Plain has no JSON form"):
            App("shop").command("Order.Place")(function)

    async def usual(data: Colour, ctx: Any) -> Point: ...

    app = App("shop")
    app.command("Order.Place")(usual)
    async with booted(app, clock):
        pass


@virtual
async def test_an_event_reaches_every_subscriber_once_in_order(clock: VirtualClock) -> None:
    """Checklist 63, 64, 29, 10: 0 to N of them, each with a copy of its own; they may say more."""
    app, heard = App("fan"), []
    for name in ("A", "B", "C"):

        @app.on("Shared.Event")
        async def hear(data: dict, ctx: Any, name: str = name) -> None:
            heard.append((name, data["tag"]))
            data["tag"] = "changed"
            if name == "B":
                ctx.emit("Follow.Up", {"cause": ctx.message.id})

    for name in ("Zed", "Mid"):
        app.capability(
            id=name,
            description="hears",
            inbound=shape("command", f"{name}.Do"),
            outbound=shape("reply", f"{name}.Do"),
            subscribes=["Shared.Event"],
            spawn=lambda name=name: Worker(lambda worker, given: heard.append((name, given.data["tag"]))),
        )
    follow: list[Any] = []
    app.on("Follow.Up")(lambda data, ctx: follow.append((data["cause"], ctx.message.metadata.causation)))
    async with booted(app, clock) as kernel:
        kernel.emit("Shared.Event", {"tag": "original"})
        await kernel.quiescent()
        await asyncio.sleep(0.01)
        assert sorted(heard) == [(name, "original") for name in ("A", "B", "C", "Mid", "Zed")]
        assert [name for name, _ in heard if name in "ABC"] == ["A", "B", "C"]
        [(cause, causation)] = follow
        assert cause == causation
        kernel.emit("Nobody.Cares", {})
        await kernel.quiescent()


@virtual
async def test_event_data_of_the_wrong_shape_is_reported_and_reaches_no_handler(clock: VirtualClock) -> None:
    """Checklist 159."""
    app, heard = App("shape"), []

    @app.on("Typed.Event")
    async def hear(data: int, ctx: Any) -> None:
        heard.append(data)

    async with booted(app, clock) as kernel:
        errors: list[Any] = []
        kernel.observe(lambda passing: errors.append(passing.type) if passing.kind == "error" else None)
        kernel.emit("Typed.Event", "text")
        kernel.emit("Typed.Event", 5)
        await kernel.quiescent()
    assert (heard, errors) == ([5], ["Sys.SchemaError"])


@virtual
async def test_replies_find_their_requests_whatever_the_order(clock: VirtualClock) -> None:
    """Checklist 65, 74, 75, 142: many in flight, answered out of order; correlation kept, absent stays absent."""
    app, chosen = App("many"), random.Random(3)
    for number in range(20):

        @app.query(f"Many{number}.Wait")
        async def wait(data: dict, ctx: Any) -> dict:
            await ctx.sleep(data["s"])
            return data

    async with served(app, clock) as site:
        client = await site.connect()
        requests = [
            query(
                f"Many{number % 20}.Wait",
                {"s": chosen.random(), "n": number},
                **({"correlation": f"c{number}"} if number % 2 else {}),
            )
            for number in range(60)
        ]
        client.send(*requests)
        lines = [await client.line() for _ in requests]
        by_cause = {line["metadata"]["causation"]: line for line in lines}
        assert len(by_cause) == 60
        assert [line["data"]["n"] for line in lines] != list(range(60)), "not in the order of asking"
        for request in requests:
            line = by_cause[request["metadata"]["id"]]
            assert (line["kind"], line["data"]) == ("reply", request["data"])
            assert line["metadata"].get("correlation") == request["metadata"].get("correlation")
            assert ("correlation" in line["metadata"]) == ("correlation" in request["metadata"])
        assert site.kernel.liveness()["inFlight"] == 0


@virtual
async def test_everything_said_while_handling_has_its_cause(clock: VirtualClock) -> None:
    """Checklist 73, 75: reply, event, follow-up command and fault."""
    app = App("cause")

    @app.command("First.Do")
    async def first(data: dict, ctx: Any) -> Any:
        ctx.emit("First.Happened", {})
        return await ctx.send("command", "Second.Do", {})

    @app.command("Second.Do")
    async def second(data: dict, ctx: Any) -> None:
        raise RuntimeError("boom")

    async with booted(app, clock) as kernel:
        passed: dict[tuple[str, str], Any] = {}
        kernel.observe(lambda passing: passed.__setitem__((passing.kind, passing.type), passing.metadata))
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "First.Do", {}, correlation="flow")
        assert caught.value.code == 500
        first_id = passed["command", "First.Do"].id
        second_id = passed["command", "Second.Do"].id
        assert passed["event", "First.Happened"].causation == first_id
        assert passed["command", "Second.Do"].causation == first_id
        assert passed["error", "Sys.ActorCrash"].causation == second_id
        assert passed["error", "First.Do"].causation == first_id
        assert {each.correlation for each in passed.values()} == {"flow"}
        ids = [each.id for each in passed.values()]
        assert len(set(ids)) == len(ids)
        assert all(isinstance(each.timestamp, int) for each in passed.values())


@virtual
async def test_the_causation_tree_of_any_message_can_be_drawn(clock: VirtualClock) -> None:
    """Checklist 73."""
    app = App("tree")

    @app.command("Root.Do")
    async def root(data: dict, ctx: Any) -> None:
        ctx.emit("Leaf.Happened", {"secret": 1})
        await ctx.send("query", "Syscall.Ping", {"payload": "secret"})

    @app.on("Leaf.Happened")
    async def leaf(data: dict, ctx: Any) -> None:
        ctx.emit("Leaf.Followed", {})

    async with served(app, clock) as site:
        client = await site.connect()
        request = command("Root.Do", {}, id="the-root")
        await client.call(request)
        tree = (await client.call(query("Syscall.Trace", {"id": "the-root"})))["data"]["messages"]
        shown = sorted((node["depth"], node["kind"], node["type"]) for node in tree)
        assert shown == [
            (0, "command", "Root.Do"),
            (1, "event", "Leaf.Happened"),
            (1, "query", "Syscall.Ping"),
            (1, "reply", "Root.Do"),
            (2, "event", "Leaf.Followed"),
            (2, "reply", "Syscall.Ping"),
        ]
        followed = next(node["id"] for node in tree if node["type"] == "Leaf.Followed")
        again = (await client.call(query("Syscall.Trace", {"id": followed})))["data"]["messages"]
        assert again == tree, "from any message of it"
        assert "secret" not in str(tree)
        unknown = await client.call(query("Syscall.Trace", {"id": "never"}))
        assert unknown["data"]["code"] == 404


@virtual
async def test_two_connections_may_use_one_id(clock: VirtualClock) -> None:
    """Checklist 69, 112, 113: each gets its own reply; also from a low-level actor, which answers out of order."""
    app = App("ids")

    def handler(worker: Worker, given: Any) -> None:
        delay = given.data["s"]
        asyncio.get_running_loop().call_later(delay, worker.say, said(given, "reply", "Low.Wait", given.data))

    app.capability(
        id="Low",
        description="waits",
        inbound=shape("query", "Low.Wait"),
        outbound=shape("reply", "Low.Wait"),
        spawn=lambda: Worker(handler),
    )

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> dict:
        await ctx.sleep(data["s"])
        return data

    async with served(app, clock) as site:
        one, other = await site.connect(), await site.connect()
        for type in ("Slow.Wait", "Low.Wait"):
            one.send(query(type, {"s": 2, "who": "one"}, id="same"))
            await one.fence()
            other.send(query(type, {"s": 1, "who": "other"}, id="same"))
            assert (await other.answer("same"))["data"]["who"] == "other"
            assert (await one.answer("same"))["data"]["who"] == "one"
            assert await one.fence() == await other.fence() == []


@virtual
async def test_the_same_id_in_flight_is_handled_once(clock: VirtualClock) -> None:
    """Checklist 141, 112: identical content is answered once, other content is 409, and an answered id is free."""
    app, ran = App("dup"), []

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> dict:
        ran.append(data)
        await ctx.sleep(1)
        return data

    async with served(app, clock) as site:
        client = await site.connect()
        request = query("Slow.Wait", {"n": 1})
        client.send(request, request, {**request, "metadata": {**request["metadata"], "timestamp": 5}})
        assert (await client.answer(request))["data"] == {"n": 1}
        assert await client.fence() == []
        assert ran == [{"n": 1}]
        client.send(request, {**request, "data": {"n": 1.0}})
        refused = await client.answer(request)
        assert (refused["type"], refused["data"]["code"]) == ("Sys.DuplicateId", 409)
        assert (await client.answer(request))["data"] == {"n": 1}
        assert len(ran) == 2
        assert (await client.call(request))["data"] == {"n": 1}


@virtual
async def test_a_connection_that_goes_leaves_nothing_behind(clock: VirtualClock) -> None:
    """Checklist 114."""
    app = App("gone")

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> dict:
        await ctx.sleep(1)
        return data

    async with served(app, clock) as site:
        other = await site.connect()
        client = await site.connect()
        client.send(*(query("Slow.Wait", {"n": number}, id=f"q{number}") for number in range(3)))
        await client.fence()
        await client.close()
        with socket.socket(socket.AF_UNIX) as broken:  # goes with an answer unread: the server sees a reset
            broken.connect(str(site.server.path))
            broken.sendall(encoded(query("Slow.Wait", {"n": 9}, id="q0")) + encoded(ping("unread")))
            await asyncio.sleep(0.1)
            assert site.kernel.liveness()["inFlight"] == 4
        await asyncio.sleep(0.1)
        assert site.kernel.liveness()["inFlight"] == 3, "a reset drops what was open; a half-close does not"
        await asyncio.sleep(10)
        assert site.kernel.liveness()["inFlight"] == 0
        assert len(site.server._connections) == 1
        other.send(query("Slow.Wait", {"n": "mine"}, id="q0"))
        assert (await other.answer("q0"))["data"] == {"n": "mine"}
        assert await other.fence() == []


@virtual
async def test_a_handler_that_would_wait_for_itself_is_told_so(clock: VirtualClock) -> None:
    app, caught = App("self", concurrency=1), []

    @app.command("Same.One")
    async def one(data: dict, ctx: Any) -> None:
        try:
            await ctx.send("command", "Same.Two", {})
        except WaitsForItself as error:
            caught.append(error.remedy)

    app.command("Same.Two")(lambda data, ctx: None)
    async with booted(app, clock) as kernel:
        await kernel.ask("command", "Same.One", {})
    assert "ctx.after" in caught[0]


# --- handlers by type hints -------------------------------------------------------------------------------------


@dataclass
class Order:
    sku: str
    count: int
    tags: list[str] = field(default_factory=list)


class Priced(TypedDict):
    price: float


class Placed(msgspec.Struct):
    id: str
    order: Order


@virtual
async def test_type_hints_say_what_goes_in_and_out(clock: VirtualClock) -> None:
    """Checklist 159: dataclasses, TypedDicts, Structs, plain types; plain functions too."""
    app = App("typed")

    @app.command("Typed.Place")
    async def place(data: Order, ctx: Any) -> Placed:
        assert isinstance(data, Order)
        return Placed(ctx.message.metadata.id, data)

    @app.query("Typed.Price")
    def price(data: Priced, ctx: Any) -> float:
        return data["price"] * 2

    @app.query("Typed.Any")
    def anything(data, ctx):  # type: ignore[no-untyped-def]
        return data

    async with booted(app, clock) as kernel:
        placed = await kernel.ask("command", "Typed.Place", {"sku": "a", "count": 1})
        assert placed["order"] == {"sku": "a", "count": 1, "tags": []}
        assert await kernel.ask("command", "Typed.Place", Order("b", 2, ["x"]))
        assert await kernel.ask("query", "Typed.Price", {"price": 1.5}) == 3.0
        for value in (None, 1, 1.0, "x", [1], {"a": None}):
            assert await kernel.ask("query", "Typed.Any", value) == value
        for wrong in (
            {"sku": "a"},
            {"sku": 1, "count": 1},
            {"sku": "a", "count": True},
            {"sku": "a", "count": 1.5},
            None,
            [],
        ):
            with pytest.raises(Fail) as caught:
                await kernel.ask("command", "Typed.Place", wrong)
            assert (caught.value.code, caught.value.type) == (422, "Sys.SchemaError")


@virtual
async def test_refusing_is_an_answer_and_no_fault(clock: VirtualClock) -> None:
    """Checklist 150: code, message, and the same shape in cause."""
    app = App("no")

    @app.command("No.Thanks")
    async def no(data: dict, ctx: Any) -> None:
        raise Fail(409, "sold out", remedy="come back tomorrow", cause=Fail(502, "upstream"))

    async with served(app, clock) as site:
        client = await site.connect()
        for _ in range(6):
            answer = await client.call(command("No.Thanks", {}))
            assert (answer["kind"], answer["type"]) == ("error", "No.Thanks")
            assert answer["data"] == {
                "code": 409,
                "message": "sold out",
                "remedy": "come back tomorrow",
                "cause": {"code": 502, "message": "upstream"},
            }
    for code in (399, 600, 0):
        with pytest.raises(ValueError, match="400 to 599"):
            Fail(code, "x")


@virtual
async def test_no_payload_in_errors(clock: VirtualClock) -> None:
    """Checklist 157."""
    secret = "hunter2secret"
    app = App("quiet")

    @dataclass
    class Checked:
        value: str

        def __post_init__(self) -> None:
            raise ValueError(f"bad value {self.value}")

    @app.command("Quiet.Do")
    async def do(data: Checked, ctx: Any) -> None: ...

    async with served(app, clock) as site:
        client = await site.connect()
        client.send_raw(b'{"password":"' + secret.encode() + b"\n")
        client.send(
            command("Quiet.Do", {"value": secret}),
            command("Memory.Set", {"key": 1, "value": secret}),
            command("No.Such", {"password": secret}),
            message("banana", "A.B", secret),
            ping(secret, timestamp=secret),
            command("Memory.Set", {"key": secret, "value": 1}),
            command("Memory.Set", {"key": "/vault/x", "value": secret}),
        )
        for _ in range(8):
            line = await client.line()
            assert line["kind"] == "error"
            assert secret not in str(line)
