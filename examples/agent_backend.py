"""A back end for language models: the commands and queries of a program are an agent's tools.

    python examples/agent_backend.py

It serves a help desk on a node of its own and lets an agent work on one question, over the NDJSON socket: one JSON
message per line, so any language can do what `Tools` does here. The agent asks the node which tools there are, calls
several at once, gets a tool's error as a result it can react to, watches a slow tool's progress, and asks for a refund:
a durable run that waits until a person has approved it, however long that takes.

The model is a script, so that the example runs without a network and says the same every time. `converse` is the loop
of every such program; to use a real model, send it `tools` and the results, and read its calls from its answer.

The same tools for other programs: `mainspring serve examples.agent_backend:app`, and in another terminal
`mainspring describe --tools`, or `mainspring mcp` as a Model Context Protocol server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mainspring import App, Context, Effect, Fail, Perform, WaitSignal, WaitTimedOut
from mainspring.cli.program.mcp import Tool, tool_from
from mainspring.testing import serving

# -- the back end: what the tools do

app = App("helpdesk")

ORDERS = {"o-7": {"id": "o-7", "customer": "ada", "cents": 2450}, "o-8": {"id": "o-8", "customer": "ben", "cents": 900}}
PARCELS = {"o-7": {"state": "lost", "seen": "Hub West"}, "o-8": {"state": "delivered", "seen": "Front door"}}
LETTERS = ["o-8 came, thank you", "where is o-7?", "o-7 did not come", "do you sell tea?"]


class OrderId(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(description="The id of an order, like o-7.")]


class Search(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(min_length=2, description="What to look for.")]


class Refund(msgspec.Struct):
    order: Annotated[str, msgspec.Meta(description="The id of the order.")]
    cents: Annotated[int, msgspec.Meta(ge=1, description="How much to pay back.")]
    reason: Annotated[str, msgspec.Meta(description="One sentence for the person who approves it.")]


class RefundAsked(msgspec.Struct):
    run: Annotated[str, msgspec.Meta(description="The run that waits for approval; Run_Outcome tells how it ended.")]


@app.query("Order.Find")
async def find_order(data: OrderId, ctx: Context) -> dict[str, Any]:
    """Look an order up: customer and price."""
    return known(ORDERS, data.id)


@app.query("Parcel.Track")
async def track(data: OrderId, ctx: Context) -> dict[str, Any]:
    """Where the parcel of an order was seen last."""
    return known(PARCELS, data.id)


def known(table: dict[str, dict[str, Any]], id: str) -> dict[str, Any]:
    """The entry, or an error that helps whoever asked: a remedy is as good for a model as for a person."""
    if id not in table:
        raise Fail(404, f"there is no order {id}", remedy=f"known orders: {', '.join(table)}")
    return table[id]


@app.command("Letter.Search")
async def search(data: Search, ctx: Context) -> list[str]:
    """Read the customers' letters for a text. Slow; tells how far it is with Letter.Searched events."""
    found = []
    for number, letter in enumerate(LETTERS, start=1):
        if data.text in letter:
            found.append(letter)
        await ctx.sleep(0.01)
        ctx.emit("Letter.Searched", {"read": number, "of": len(LETTERS)})
    return found


@app.command("Refund.Request")
async def request_refund(data: Refund, ctx: Context) -> RefundAsked:
    """Ask for a refund. A person approves it first; asking twice for one order is asking once."""
    run = await ctx.send("command", "Run.Start", {"program": "refund", "args": [data], "id": f"refund-{data.order}"})
    ctx.emit("Refund.Requested", {"run": run["id"], "order": data.order, "cents": data.cents, "reason": data.reason})
    return RefundAsked(run["id"])


class PayBack(Effect[str]):
    """Money leaves the house."""

    order: str
    cents: int


@app.handles(PayBack)
async def pay_back(effect: PayBack, ctx: Any) -> str:
    return f"paid back {effect.cents} cents for {effect.order}"


@app.run
async def refund(data: Refund, perform: Perform) -> str:
    """Waits for a decision, over restarts and crashes; pays back once."""
    try:
        by = await perform(WaitSignal("approved", timeout="7d"))
    except WaitTimedOut:
        return "nobody approved it within a week"
    receipt = await perform(PayBack(data.order, data.cents))
    return f"{receipt}, approved by {by}"


# -- the client: tools over a socket

# What the model is offered. Not Run.Signal: an agent that could approve its own refunds would need no approval.
OFFERED = ("Order.", "Parcel.", "Letter.", "Refund.", "Run.Outcome")

Message = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """What a model wants: a tool by name, and its arguments. `id` is its own, and correlates all that follows."""

    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What it gets back. An error is a result, too: a model can read it and do better."""

    content: Any
    is_error: bool = False

    @property
    def run(self) -> str | None:
        """The durable run that the call has begun."""
        return self.content.get("run") if isinstance(self.content, dict) else None


class Tools:
    """One connection to a node. Answers come in any order; `metadata.causation` says what each of them answers."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._tools: dict[str, Tool] = {}

    async def ask(self, kind: str, type: str, data: Any, correlation: str | None = None) -> Message:
        """The reply or the error to one message."""
        id = f"m{next(self._ids)}"
        metadata = {"id": id, "timestamp": int(time.time() * 1000), "correlation": correlation or id}
        line = json.dumps({"kind": kind, "type": type, "data": data, "metadata": metadata})
        self._waiting[id] = asyncio.get_running_loop().create_future()
        self._writer.write(line.encode() + b"\n")
        return await self._waiting[id]

    async def learn(self) -> list[dict[str, Any]]:
        """Ask the node what it can do; gives the tools to offer, as model APIs take them."""
        types: list[str] = []
        page, pages = 0, 1
        while page < pages:
            listed = (await self.ask("query", "Syscall.List", {"page": page}))["data"]
            types += [each["type"] for each in listed["types"] if each["type"].startswith(OFFERED)]
            page, pages = page + 1, listed["pages"]
        described = await asyncio.gather(*(self.ask("query", "Syscall.Describe", {"name": type}) for type in types))
        found = [tool_from(each["data"]["name"], each["data"]) for each in described]
        self._tools = {tool.name: tool for tool in found}
        return [tool.definition() for tool in found]

    async def call(self, call: Call) -> Result:
        """Do what the model wants; what goes wrong is a result for the model, not an error of this program."""
        tool = self._tools.get(call.tool)
        if tool is None:
            return Result(f"there is no tool {call.tool}", is_error=True)
        answer = await self.ask(tool.kind, tool.type, tool.data(call.arguments), correlation=call.id)
        data = answer["data"]
        if answer["kind"] == "error":
            return Result(f"{data['code']}: {data['message']}; {data.get('remedy', 'no remedy')}", is_error=True)
        return Result(data)

    async def listen(self, reader: asyncio.StreamReader, heard: Callable[[Message], None]) -> None:
        """Hand every line to whoever waits for it, until the connection ends."""
        while line := await reader.readline():
            message = json.loads(line)
            if message["kind"] == "event":
                heard(message)
            else:
                self._waiting.pop(message["metadata"]["causation"]).set_result(message)
        for waiting in self._waiting.values():
            waiting.set_exception(ConnectionError("the node has gone"))


@asynccontextmanager
async def tools_at(socket: Path, events: list[str], heard: Callable[[Message], None]) -> AsyncIterator[Tools]:
    """A connection to a node; `heard` is called with each event of these types."""
    reader, writer = await asyncio.open_unix_connection(socket)
    tools = Tools(writer)
    listening = asyncio.create_task(tools.listen(reader, heard))
    try:
        await tools.ask("command", "Event.Subscribe", {"types": events})
        yield tools
    finally:
        writer.close()
        await listening


# -- the agent

Model = Generator[list[Call], list[Result], str]


def scripted_model(question: str, tools: list[dict[str, Any]]) -> Model:
    """Plays a language model: yields the calls it wants made together, is sent their results, returns its answer."""
    assert {tool["name"] for tool in tools} >= {"Order_Find", "Parcel_Track", "Letter_Search", "Refund_Request"}
    number = question.partition("order ")[2].rstrip(".")
    (found,) = yield [Call("call-1", "Order_Find", {"id": number})]
    if found.is_error:  # the error names the orders there are: it reads that, as models do, and tries again
        number = next(word for word in found.content.replace(",", " ").split() if word.endswith(f"-{number}"))
    order, parcel, letters = yield [
        Call("call-2", "Order_Find", {"id": number}),
        Call("call-3", "Parcel_Track", {"id": number}),
        Call("call-4", "Letter_Search", {"text": number}),
    ]
    if parcel.content["state"] != "lost":
        return "Your parcel is not lost; please be patient."
    reason = f"lost at {parcel.content['seen']}, {len(letters.content)} letters about it"
    wish = {"order": number, "cents": order.content["cents"], "reason": reason}
    (asked,) = yield [Call("call-5", "Refund_Request", wish)]
    (outcome,) = yield [Call("call-6", "Run_Outcome", {"id": asked.content["run"]})]
    return f"I am sorry that your parcel was lost. We {outcome.content['value']}."


class Agent:
    """The loop around a model, and what it hears meanwhile."""

    def __init__(self) -> None:
        self._ended: dict[str, asyncio.Event] = {}

    def heard(self, event: Message) -> None:
        """Progress of a call, which its correlation names, or the end of a run."""
        whose = event["metadata"].get("correlation", "a run")
        print(f"  hears  {event['type']} {json.dumps(event['data'])} of {whose}")
        if event["type"].startswith("Run."):
            self._end_of(event["data"]["id"]).set()

    def _end_of(self, run: str) -> asyncio.Event:
        return self._ended.setdefault(run, asyncio.Event())

    async def converse(self, tools: Tools, model: Model) -> str:
        """Make the calls the model wants, all at once, and give it what they gave, until it has an answer."""
        calls = next(model)
        while True:
            for call in calls:
                print(f"  calls  {call.tool} {json.dumps(call.arguments)} as {call.id}")
            results = await asyncio.gather(*(tools.call(call) for call in calls))
            for call, result in zip(calls, results, strict=True):
                print(f"  {'failed' if result.is_error else 'gave  '} {call.id} {json.dumps(result.content)}")
                if (run := result.run) is not None:  # the model goes on when what it has begun is over
                    await self._end_of(run).wait()
            try:
                calls = model.send(results)
            except StopIteration as end:
                return str(end.value)


async def approve(desk: Tools, asked: asyncio.Queue[Message]) -> None:
    """Grace, who approves refunds, at a desk of her own."""
    wish = (await asked.get())["data"]
    print(f"grace: {wish['run']}? {wish['reason']}: granted")
    await desk.ask("command", "Run.Signal", {"id": wish["run"], "name": "approved", "value": "grace"})


async def main() -> None:
    question = "My parcel did not come. It was order 7."
    agent = Agent()
    asked: asyncio.Queue[Message] = asyncio.Queue()
    async with (
        serving(app) as node,
        tools_at(node.kernel_socket, ["Letter.Searched", "Run.*"], agent.heard) as tools,
        tools_at(node.kernel_socket, ["Refund.Requested"], asked.put_nowait) as desk,
    ):
        offered = await tools.learn()
        print(f"tools: {', '.join(each['name'] for each in offered)}")
        print(f"ada: {question}")
        grace = asyncio.create_task(approve(desk, asked))
        answer = await agent.converse(tools, scripted_model(question, offered))
        await grace
        print(f"agent: {answer}")


if __name__ == "__main__":
    asyncio.run(main())
