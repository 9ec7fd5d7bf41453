"""How many messages the handlers of a capability take at a time, and in which order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Fail, RestartPolicy
from mainspring.kernel import Capability, CapabilityError, Kernel, WaitsForItself, handler_from
from mainspring.loop import VirtualClock
from tests.support.kernel import booted, virtual


class Gauge:
    """How many are at work, and how many were at most."""

    def __init__(self) -> None:
        self.now, self.most, self.order = 0, 0, list[Any]()

    def begin(self, what: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(what)

    def end(self) -> None:
        self.now -= 1


def measured(app: App, gauge: Gauge, type: str = "Work.Do", **options: Any) -> None:
    @app.command(type, **options)
    async def do(data: dict, ctx: Any) -> int:
        gauge.begin(data["n"])
        await ctx.sleep(1)
        gauge.end()
        return data["n"]


async def ask_many(kernel: Any, count: int, type: str = "Work.Do") -> list[Any]:
    return list(await asyncio.gather(*(kernel.ask("command", type, {"n": n, "key": n % 3}) for n in range(count))))


@pytest.mark.parametrize(("limit", "seconds"), [(1, 7), (2, 4), (100, 1)])
@virtual
async def test_an_app_takes_so_many_messages_at_a_time(clock: VirtualClock, limit: int, seconds: int) -> None:
    app, gauge = App("work", concurrency=limit), Gauge()
    measured(app, gauge)
    async with booted(app, clock) as kernel:
        begun = clock.now_ms()
        assert await ask_many(kernel, 7) == list(range(7))
        assert clock.now_ms() - begun == seconds * 1000
    assert gauge.most == min(limit, 7)
    assert gauge.order == list(range(7)), "begun in the order in which they came"


@virtual
async def test_a_hundred_at_a_time_unless_told_otherwise(clock: VirtualClock) -> None:
    app, gauge = App("work"), Gauge()
    measured(app, gauge)
    async with booted(app, clock) as kernel:
        await ask_many(kernel, 250)
    assert gauge.most == 100


@virtual
async def test_a_handler_with_its_own_number_leaves_the_others_theirs(clock: VirtualClock) -> None:
    app, one, many = App("work"), Gauge(), Gauge()
    measured(app, one, "Work.One", concurrency=1)
    measured(app, many, "Work.Many")
    async with booted(app, clock) as kernel:
        begun = clock.now_ms()
        alone = asyncio.ensure_future(ask_many(kernel, 4, "Work.One"))
        await ask_many(kernel, 20, "Work.Many")
        assert clock.now_ms() - begun == 1000, "nothing of the other one was waited for"
        await alone
        assert clock.now_ms() - begun == 4000
    assert (one.most, one.order, many.most) == (1, [0, 1, 2, 3], 20)


@dataclass
class Deposit:
    account: str
    n: int


@pytest.mark.parametrize("key", ["account", lambda data: data.account])
@virtual
async def test_messages_with_the_same_key_are_handled_in_order_across_handlers(clock: VirtualClock, key: Any) -> None:
    app, at_work, order = App("bank"), dict[str, int](), list[Any]()

    @app.command("Account.Deposit", key=key)
    async def deposit(data: Deposit, ctx: Any) -> None:
        at_work[data.account] = at_work.get(data.account, 0) + 1
        assert at_work[data.account] == 1
        await ctx.sleep(1 if data.n else 3)  # the first is the slowest
        order.append((data.account, data.n))
        at_work[data.account] -= 1
        if data.n == 2:
            raise Fail(409, "no")
        if data.n == 3:
            raise KeyError("gone")

    app.command("Account.Withdraw", key=key, concurrency=2)(deposit)
    async with booted(app, clock) as kernel:
        begun = clock.now_ms()
        asked = [
            kernel.ask("command", "Account.Withdraw" if n % 2 else "Account.Deposit", {"account": who, "n": n})
            for n in range(5)
            for who in ("ada", "grace")
        ]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert clock.now_ms() - begun == 7000, "both accounts side by side"
        slot: Any = kernel.exchange.router.slots["Account"]
        assert slot.waiting == 0
        assert await kernel.ask("command", "Account.Deposit", {"account": "ada", "n": 9}) is None
    assert [n for who, n in order if who == "ada"] == [0, 1, 2, 3, 4, 9]
    assert [getattr(each, "code", None) for each in outcomes] == [None] * 4 + [409] * 2 + [500] * 2 + [None] * 2


def test_a_key_that_the_data_does_not_have_is_refused_at_the_declaration() -> None:
    with pytest.raises(CapabilityError, match="'colour'") as caught:

        @App("bank").command("Account.Deposit", key="colour")
        async def deposit(data: Deposit, ctx: Any) -> None: ...

    assert caught.value.remedy == "it has account, n"


@virtual
async def test_data_without_its_key_is_an_error_for_its_caller(clock: VirtualClock) -> None:
    app = App("bank")

    @app.command("Account.Deposit", key="account")
    async def deposit(data: dict, ctx: Any) -> str:
        return "ok"

    async with booted(app, clock) as kernel:
        for wrong in ({}, {"account": ["not", "a", "key"]}):
            with pytest.raises(Fail) as caught:
                await kernel.ask("command", "Account.Deposit", wrong)
            assert caught.value.code == 500
        assert await kernel.ask("command", "Account.Deposit", {"account": 1}) == "ok"


@virtual
async def test_listeners_hear_events_in_order_unless_told_otherwise(clock: VirtualClock) -> None:
    app, heard, at_once = App("ears"), list[int](), Gauge()

    @app.on("Loud.Event")
    async def hear(data: int, ctx: Any) -> None:
        await ctx.sleep(1 / (data + 1))  # later ones are quicker
        heard.append(data)

    @app.on("Loud.Event", concurrency=10)
    async def also(data: int, ctx: Any) -> None:
        at_once.begin(data)
        await ctx.sleep(1)
        at_once.end()

    async with booted(app, clock) as kernel:
        for number in range(5):
            kernel.emit("Loud.Event", number)
        await kernel.quiescent()
    assert heard == [0, 1, 2, 3, 4]
    assert at_once.most == 5


@virtual
async def test_a_handler_may_ask_its_own_capability_as_long_as_that_can_answer(clock: VirtualClock) -> None:
    app = App("self", concurrency=3)

    @app.query("Tree.Depth")
    async def depth(data: int, ctx: Any) -> int:
        await ctx.sleep(0.01)
        return 1 + await ctx.send("query", "Tree.Depth", data - 1) if data else 0

    async with booted(app, clock) as kernel:
        assert await kernel.ask("query", "Tree.Depth", 3) == 3
        assert await asyncio.gather(*(kernel.ask("query", "Tree.Depth", 1) for _ in range(3))) == [1, 1, 1]
        with pytest.raises(Fail, match="WaitsForItself"):  # it would go on for ever
            await kernel.ask("query", "Tree.Depth", 10**9)
        assert await kernel.ask("query", "Tree.Depth", 2) == 2, "nothing is left behind"


@virtual
async def test_asking_for_the_key_one_is_handled_under_is_refused(clock: VirtualClock) -> None:
    app, caught = App("self"), list[str]()

    @app.command("Account.Move", key="account")
    async def move(data: dict, ctx: Any) -> str:
        try:
            if data.get("to"):
                return str(await ctx.send("command", "Account.Move", {"account": data["to"]}))
        except WaitsForItself as error:
            caught.append(error.message)
        return f"moved {data['account']}"

    async with booted(app, clock) as kernel:
        assert await kernel.ask("command", "Account.Move", {"account": "a", "to": "b"}) == "moved b"
        assert await kernel.ask("command", "Account.Move", {"account": "a", "to": "a"}) == "moved a"
    assert "one at a time" in caught[0]


@virtual
async def test_an_exception_is_an_error_for_its_caller_and_for_nobody_else(clock: VirtualClock) -> None:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: dict, ctx: Any) -> str:
        await ctx.sleep(1)
        return str(data["sku"])

    async with booted(app, clock) as kernel:
        begun = clock.now_ms()
        wrong = [kernel.ask("command", "Order.Place", {}) for _ in range(50)]
        good = kernel.ask("command", "Order.Place", {"sku": "x"})
        assert await good == "x"
        outcomes = await asyncio.gather(*wrong, return_exceptions=True)
        assert {(each.code, each.type, each.message) for each in outcomes} == {  # type: ignore[union-attr]
            (500, "Sys.ActorCrash", "KeyError: 'sku'")
        }
        assert await kernel.ask("command", "Order.Place", {"sku": "y"}) == "y"
        assert clock.now_ms() - begun == 2000, "nobody waited for a restart"
        assert kernel.counters["restarts"] == 0
        assert not kernel.exchange.router.slots["Order"].unhealthy


@virtual
async def test_what_else_a_supervised_actor_handles_when_one_message_fails_may_end(clock: VirtualClock) -> None:
    app = App("shop", restart=RestartPolicy(max_restarts=1, backoff_ms=100))

    @app.command("Order.Place")
    async def place(data: int, ctx: Any) -> int:
        await ctx.sleep(data)
        if data in (1, 2):
            raise KeyError(data)
        return data

    async with booted(app, clock) as kernel:
        asked = [kernel.ask("command", "Order.Place", seconds) for seconds in (1, 2, 3)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(each, "message", each) for each in outcomes] == ["KeyError: 1", "KeyError: 2", 3]
        assert await kernel.ask("command", "Order.Place", 0) == 0, "one fault, whatever ended with it"
        with pytest.raises(Fail, match="KeyError"):
            await kernel.ask("command", "Order.Place", 1)
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Order.Place", 0)
        assert caught.value.code == 503
        assert "mainspring actors restart Order" in caught.value.remedy
        assert kernel.exchange.router.slots["Order"].start_again()
        assert await kernel.ask("command", "Order.Place", 0) == 0
        assert not kernel.exchange.router.slots["Order"].start_again(), "there is nothing to start"


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_concurrency_below_one_is_refused(wrong: int) -> None:
    with pytest.raises(CapabilityError, match=f"the concurrency of app 'x' is 1 or more, not {wrong}"):
        App("x", concurrency=wrong)
    with pytest.raises(CapabilityError, match=f"concurrency is 1 or more, not {wrong}"):
        App("x").command("Order.Place", concurrency=wrong)(lambda data, ctx: None)
    kernel = Kernel()
    handler = handler_from("command", "Order.Place", lambda data, ctx: None)
    kernel.register(Capability(id="Order", handlers=[handler], concurrency=wrong))
    with pytest.raises(CapabilityError, match="concurrency"):
        kernel.discover()


def test_a_process_takes_one_message_at_a_time() -> None:
    app = App("x")
    app.command("Order.Place", isolation="process", concurrency=2)(lambda data, ctx: None)
    kernel = app.kernel()
    with pytest.raises(CapabilityError, match="one message at a time"):
        kernel.discover()
