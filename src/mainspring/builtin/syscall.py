"""Syscall: the node about itself.

Ping proves that the whole way works, because its payload takes it; Describe shows contracts from their schemas without
waking any actor; Outcome finds the answer of a durable command; Trace shows what caused what; Nodes shows who else is
there. What only other nodes handle is described and listed too, with the name of one that does: those are asked.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from mainspring.builtin.other_nodes import Elsewhere
from mainspring.cluster import NodeView
from mainspring.kernel import Capability, Context, Fail, Handler, Kernel, handler_from
from mainspring.kernel.capability import Contract

_TRACE_BYTES: Final = 14_000  # of a line of 16384: the rest is envelope

_PAGE: Final = 40  # types on one page of Syscall.List


def _about(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Ping(msgspec.Struct):
    payload: Annotated[Any, _about("Anything; it comes back unchanged.")]


class Describe(msgspec.Struct):
    name: Annotated[str | None, _about("One message type, like Memory.Set.")] = None
    capabilities: Annotated[list[str] | None, _about('Several message types; "*" stands for all.')] = None


class Nothing(msgspec.Struct):
    pass


class Authenticate(msgspec.Struct):
    pass


class Shutdown(msgspec.Struct):
    pass


class ListTypes(msgspec.Struct):
    page: Annotated[int, msgspec.Meta(ge=0, description="Which page, from 0.")] = 0


class OutcomeOf(msgspec.Struct):
    id: Annotated[str, _about("The id of a command that was sent to a durable capability.")]


class TraceOf(msgspec.Struct):
    id: Annotated[str, _about("The id of a message that passed lately.")]


class Authenticated(msgspec.Struct):
    authenticated: bool
    message: str


class ShuttingDown(msgspec.Struct):
    success: bool
    message: str


def syscall(kernel: Kernel) -> Capability:
    """The capability `Syscall` of this kernel."""
    elsewhere = Elsewhere(kernel)

    def ping(data: Ping, ctx: Context) -> Ping:
        """Give the payload back unchanged: the whole way works."""
        return data

    async def describe(data: Describe, ctx: Context) -> dict[str, Any]:
        """Show what a message type takes and gives, as JSON Schema."""
        if data.name is not None:
            contract = kernel.contract(data.name)
            if contract is not None:
                return {"name": data.name, **_described(contract)}
            found = await elsewhere.describe([data.name])
            if data.name not in found:
                raise Fail(404, "no such message type", remedy='ask with {"capabilities": ["*"]} for all')
            return {"name": data.name, **found[data.name]}
        if data.capabilities is None:
            raise Fail(422, "Schema validation failed: data: give name or capabilities")
        everything = "*" in data.capabilities
        contracts = kernel.contracts()
        here = {each.type: _described(each) for each in contracts if everything or each.type in data.capabilities}
        others = elsewhere.types() if everything else [name for name in data.capabilities if name not in here]
        return {"schemas": {**here, **await elsewhere.describe(others)}}

    def list_types(data: ListTypes, ctx: Context) -> dict[str, Any]:
        """Every type that can be asked, with kind and description; page by page, because all seldom fit a line."""
        found = [
            {"type": each.type, "kind": each.kind, "description": each.description.partition("\n")[0][:160]}
            for each in kernel.contracts()
        ]
        found += elsewhere.listed()
        return {"types": found[data.page * _PAGE : (data.page + 1) * _PAGE], "pages": -(-len(found) // _PAGE)}

    def nodes(data: Nothing, ctx: Context) -> dict[str, list[NodeView]]:
        """Every node on this node's log: name, epoch, address, roles, and what its program handles."""
        return {"nodes": kernel.cluster.nodes()}

    def authenticate(data: Authenticate, ctx: Context) -> Authenticated:
        """Accepted from clients that begin with it; nothing needs it."""
        return Authenticated(True, "this socket belongs to its user: no authentication is needed")

    def shutdown(data: Shutdown, ctx: Context) -> ShuttingDown:
        """Answer, finish what is open, and end the node."""
        kernel.request_shutdown()
        return ShuttingDown(True, "shutting down")

    async def outcome(data: OutcomeOf, ctx: Context) -> dict[str, Any]:
        """The reply or error of a durable command, also after a restart."""
        lane = kernel.exchange.durable
        try:
            if lane is None:
                raise KeyError(data.id)
            found = await lane.outcome(data.id)
        except KeyError:
            raise Fail(404, "no durable command with this id", remedy="outcomes are kept for a week") from None
        if found is None:
            return {"id": data.id, "state": "pending"}
        return {"id": data.id, "state": "done", "kind": found.kind, "type": found.type, "data": found.data}

    async def trace(data: TraceOf, ctx: Context) -> dict[str, Any]:
        """The causation tree around a message, an event or a run: headers only, never data."""
        nodes = await kernel.whole_trace(data.id)
        if not nodes:
            raise Fail(404, "this message is not known (any more)", remedy="only the latest messages are remembered")
        shown: list[Any] = []
        size = 0
        for node in nodes:
            size += len(msgspec.json.encode(node)) + 1
            if size > _TRACE_BYTES:
                break
            shown.append(node)
        return {"id": data.id, "messages": shown, "truncated": len(shown) < len(nodes)}

    handlers: list[Handler] = [
        handler_from("query", "Syscall.Ping", ping),
        handler_from("query", "Syscall.Describe", describe),
        handler_from("query", "Syscall.List", list_types),
        handler_from("command", "Syscall.Authenticate", authenticate),
        handler_from("command", "Syscall.Shutdown", shutdown),
        handler_from("query", "Syscall.Outcome", outcome),
        handler_from("query", "Syscall.Trace", trace),
        handler_from("query", "Syscall.Nodes", nodes),
    ]
    return Capability(id="Syscall", description="The node about itself.", handlers=handlers)


def _described(contract: Contract) -> dict[str, Any]:
    return {
        "kind": contract.kind,
        "description": contract.description,
        "input": contract.input.json_schema(),
        "output": contract.output.json_schema(),
    }
