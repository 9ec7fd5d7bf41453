"""Syscall: the node about itself.

Ping proves that the whole way works, because its payload takes it; Describe shows contracts from their schemas without
waking any actor; Outcome finds the answer of a durable command; Trace shows what caused what; Actors shows how the
capabilities do, and Restart starts one that failed too often; Nodes shows which other nodes are there; Attention shows
what needs a person; DeadLetters, Redrive and DropDeadLetters are about messages that failed and reached nobody.

What only other nodes handle is described and listed too, with the name of one that does. Which types they handle is in
their pulses; what a type takes and gives only they know, so they are asked. A node that does not answer in time is
named without the schemas: an incomplete answer is better than an error.

A token is told of the types that it may send, of the outcomes of such commands, and of the traces that they left.
"""

from __future__ import annotations

import asyncio
import builtins
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from mainspring.builtin.answers import Messages, about, caller_of, fitting
from mainspring.cluster import NodeView
from mainspring.kernel import MOST_DEAD_MESSAGES as MOST
from mainspring.kernel import Capability, Context, Contract, DeadMessage, Fail, Inspector, Kernel

if TYPE_CHECKING:
    from mainspring.status import AttentionDesk

_TRACE_BYTES: Final = 14_000  # of a line of 16384: the rest is envelope
_SHORT: Final = 100  # characters of a description in an overview
_PAGE: Final = 40  # types on one page of Syscall.List
_OUTCOME: Final = "Syscall.Outcome"
_NODE_TIMEOUT_MS: Final = 5_000  # shorter than the requester waits


message: Final = Messages("Syscall", "The node about itself.")
Payload = Annotated[Any, about("Anything; it comes back unchanged.")]


class Ping(msgspec.Struct):
    payload: Payload


class AuthenticateResult(msgspec.Struct):
    authenticated: bool
    message: str


class RestartResult(msgspec.Struct):
    capability: str
    restarted: bool  # False: it was running


class ShutdownResult(msgspec.Struct):
    success: bool
    message: str


class DeadMessagesResult(msgspec.Struct):
    letters: list[DeadMessage]
    more: Annotated[bool, about("There are more behind the last one.")]


After = Annotated[str, about("Only letters behind the one with this id: the next page.")]
LetterIds = Annotated[list[str] | None, about("Ids of letters, as Syscall.DeadLetters shows them.")]
AllLetters = Annotated[bool, about("All letters.")]


def syscall_capability(kernel: Kernel, attention: AttentionDesk | None = None) -> Capability:
    """The capability `Syscall` of this kernel. `attention` knows what needs a person on the whole node."""
    return message.of(_Syscall(kernel, attention))


class _Syscall:
    def __init__(self, kernel: Kernel, attention: AttentionDesk | None) -> None:
        self._kernel = kernel
        self._attention = attention

    @message("query", "Syscall.Ping", "Ping")
    def ping(self, payload: Payload) -> Ping:
        """Give the payload back unchanged: the whole way works."""
        return Ping(payload)

    @message("query", "Syscall.Describe", "DescribeRequest")
    async def describe(
        self,
        ctx: Context,
        name: Annotated[str | None, about("One message type, like Memory.Set.")] = None,
        capabilities: Annotated[list[str] | None, about('Several message types; "*" stands for all.')] = None,
        cursor: Annotated[str, about("What an answer gave that did not fit: the next page, from this type on.")] = "",
    ) -> dict[str, Any]:
        """Show what a message type takes and gives, as JSON Schema.

        On a connection that speaks lines, an answer that does not fit one is an overview: every type with its kind
        and its description, and a `cursor`. Ask again with that cursor for the schemas, page by page.
        """
        if name is not None:
            return {"name": name, **await self._describe_one(ctx, name)}
        if capabilities is None:
            raise Fail(422, "Schema validation failed: data: give name or capabilities")
        everything = "*" in capabilities
        contracts = self._kernel.contracts()
        here: dict[str, dict[str, Any]] = {}
        for each in contracts:
            if everything or each.type in capabilities:
                here[each.type] = _schemas(each)
                await asyncio.sleep(0)  # making a hundred schemas takes longer than others should wait
        others = list(self._remote_types()) if everything else [name for name in capabilities if name not in here]
        schemas = {**here, **await self._describe_remote(others)}
        visible = {name: each for name, each in schemas.items() if _may_send(ctx, each["kind"], name)}
        return _page(visible, cursor, getattr(ctx.origin, "answer_bytes", None))

    @message("query", "Syscall.List", "ListTypesRequest")
    def list_types(
        self, ctx: Context, page: Annotated[int, msgspec.Meta(ge=0, description="Which page, from 0.")] = 0
    ) -> dict[str, Any]:
        """Every type that can be asked, with kind and description; page by page, because all seldom fit a line."""
        listed = [
            {"type": each.type, "kind": each.kind, "description": each.description.partition("\n")[0][:160]}
            for each in self._kernel.contracts()
        ]
        listed += [  # without descriptions, which only `describe` fetches
            {"type": type, "kind": kind, "description": "", "node": node.name}
            for type, (kind, node) in self._remote_types().items()
        ]
        listed = [each for each in listed if _may_send(ctx, each["kind"], each["type"])]
        return {"types": listed[page * _PAGE : (page + 1) * _PAGE], "pages": -(-len(listed) // _PAGE)}

    @message("command", "Syscall.Authenticate", "AuthenticateRequest")
    def authenticate(
        self, ctx: Context, token: Annotated[str | None, about("Where the node wants one: over TCP.")] = None
    ) -> AuthenticateResult:
        """Say who is connected. Over TCP it comes first, with a token; a unix socket belongs to its user."""
        caller = caller_of(ctx)
        if caller is not None and caller.is_proven:
            return AuthenticateResult(True, f"authenticated as {caller.agent}")
        return AuthenticateResult(True, "no authentication is needed here")

    @message("command", "Syscall.Shutdown")
    def shutdown(self) -> ShutdownResult:
        """Answer, finish what is open, and end the node."""
        self._kernel.request_shutdown()
        return ShutdownResult(True, "shutting down")

    @message("query", _OUTCOME, "OutcomeRequest")
    async def outcome(
        self, ctx: Context, id: Annotated[str, about("The id of a command that was sent to a durable capability.")]
    ) -> dict[str, Any]:
        """The reply or error of a durable command, also after a restart."""
        unknown = Fail(404, "no durable command with this id", remedy="outcomes are kept for a week")
        try:
            command = await self._kernel.stored_command(id)
        except KeyError:
            raise unknown from None
        outcome, caller = command.outcome, caller_of(ctx)
        if not (caller is None or caller.may_see("query", _OUTCOME) or caller.may_see("command", command.message.type)):
            raise unknown
        if outcome is None:
            return {"id": id, "state": "pending"}
        return {"id": id, "state": "done", "kind": outcome.kind, "type": outcome.type, "data": outcome.data}

    @message("query", "Syscall.Trace", "TraceRequest")
    async def trace(
        self, ctx: Context, id: Annotated[str, about("The id of a message that passed lately.")]
    ) -> dict[str, Any]:
        """The causation tree around a message, an event or a run: headers only, never data."""
        tree, caller = await self._kernel.whole_trace(id), caller_of(ctx)
        if caller is not None:
            tree = [each for each in tree if caller.may_see(each.kind, each.type)]
        if not tree:
            raise Fail(404, "this message is not known (any more)", remedy="only the latest messages are remembered")
        shown = fitting(tree, _TRACE_BYTES)
        return {"id": id, "messages": shown, "truncated": len(shown) < len(tree)}

    @message("query", "Syscall.DeadLetters", "DeadMessagesRequest")
    async def dead_letters(
        self, ctx: Context, after: After = "", limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    ) -> DeadMessagesResult:
        """Messages that failed and reached nobody, or were given up after their last attempt; oldest first."""
        letters = await self._kernel.dead_messages.page(after, limit)
        shown = fitting([each for each in letters if _may_see(ctx, each)])
        return DeadMessagesResult(shown, len(shown) < len(letters) or len(letters) == limit)

    @message("command", "Syscall.Redrive", "RedriveMessagesRequest", gives="MessageCount.count")
    async def redrive(self, ctx: Context, ids: LetterIds = None, all: AllLetters = False) -> int:
        """Send dead messages again, with all their attempts. Each stays in the list until it was handled."""
        return self._kernel.dead_messages.redrive(await self._letters(ctx, ids, all))

    @message("command", "Syscall.DropDeadLetters", "DropMessagesRequest", gives="MessageCount.count")
    async def drop_dead_letters(self, ctx: Context, ids: LetterIds = None, all: AllLetters = False) -> int:
        """Drop dead messages: nobody gets them any more."""
        return self._kernel.dead_messages.drop(await self._letters(ctx, ids, all))

    async def _letters(self, ctx: Context, ids: list[str] | None, all: bool) -> list[DeadMessage]:
        if (ids is None) is not all:
            text = "Schema validation failed: data: give ids or all, one of them"
            raise Fail(422, text, remedy="`mainspring dead-messages list` shows the ids")
        letters = await self._kernel.dead_messages.page(limit=MOST)
        wanted = None if ids is None else set(ids)
        chosen = [each for each in letters if wanted is None or each.id in wanted]
        if not builtins.all(_may_send(ctx, each.message.kind, each.message.type) for each in chosen):
            raise Fail(403, "this token may not send all of these messages", remedy="use a token with the scope admin")
        return chosen

    @message("query", "Syscall.Actors")
    def actors(self) -> dict[str, Any]:
        """Every capability with the state of its actor: running, restarting or unhealthy."""
        actors = Inspector(self._kernel).actors()
        shown = fitting(actors, _TRACE_BYTES)
        return {"actors": shown, "truncated": len(shown) < len(actors)}

    @message("command", "Syscall.Restart", "RestartRequest")
    def restart(
        self, capability: Annotated[str, about("A capability that failed too often, like Order.")]
    ) -> RestartResult:
        """Start a capability again that is unhealthy because it failed too often. One that runs is left alone."""
        try:
            return RestartResult(capability, self._kernel.start_again(capability))
        except KeyError:
            raise Fail(404, "no such capability", remedy="`mainspring actors list` shows them") from None

    @message("query", "Syscall.Attention")
    async def attention(self, ctx: Context) -> dict[str, Any]:
        """What needs a person: failed runs, dead letters, capabilities that gave up, groups that are behind, ..."""
        from mainspring.status import AttentionDesk  # a kernel alone imports neither bus nor runs until it is asked

        desk = self._attention or AttentionDesk(clock=self._kernel.clock, kernel=self._kernel)
        report: dict[str, Any] = msgspec.to_builtins(await desk.report(caller_of(ctx)))
        return report

    @message("query", "Syscall.Nodes")
    def nodes(self) -> dict[str, list[NodeView]]:
        """Every node on this node's log: name, epoch, address, roles, and what its program handles."""
        return {"nodes": self._kernel.cluster.nodes()}

    # --- what other nodes handle ---------------------------------------------------------------------------------

    async def _describe_one(self, ctx: Context, name: str) -> dict[str, Any]:
        contract = self._kernel.contract(name)
        described = _schemas(contract) if contract is not None else (await self._describe_remote([name])).get(name)
        if described is None or not _may_send(ctx, described["kind"], name):
            raise Fail(404, "no such message type", remedy='ask with {"capabilities": ["*"]} for all')
        return described

    def _remote_types(self) -> dict[str, tuple[str, NodeView]]:
        """Types that this node does not handle: their kind, and a node that does. A command goes before a query."""
        types: dict[str, tuple[str, NodeView]] = {}
        for handled, nodes in sorted(self._kernel.served_by_others().items()):
            kind, _, type = handled.partition(":")
            if self._kernel.contract(type) is None:
                types.setdefault(type, (kind, nodes[0]))
        return types

    async def _describe_remote(self, types: list[str]) -> dict[str, dict[str, Any]]:
        """Those of the types that other nodes handle, each with the name of a node that does."""
        remote = self._remote_types()
        by_node: dict[str, tuple[NodeView, list[str]]] = {}
        for type in types:
            if type in remote:
                node = remote[type][1]
                by_node.setdefault(node.name, (node, []))[1].append(type)
        answers = await asyncio.gather(*(self._ask_node(*asked) for asked in by_node.values()))
        schemas = {type: schema for answer in answers for type, schema in answer.items()}
        return {
            type: {"kind": remote[type][0], **schemas.get(type, {}), "node": name}
            for name, (_, asked) in by_node.items()
            for type in asked
        }

    async def _ask_node(self, node: NodeView, types: list[str]) -> dict[str, Any]:
        data, timeout_ms = {"capabilities": types}, _NODE_TIMEOUT_MS
        try:
            answer = await self._kernel.ask_node(node, "query", "Syscall.Describe", data, timeout_ms=timeout_ms)
        except Fail:
            return {}
        return dict(answer["schemas"])


def _may_send(ctx: Context, kind: str, type: str) -> bool:
    caller = caller_of(ctx)
    return caller is None or caller.may_send(kind, type)


def _may_see(ctx: Context, letter: DeadMessage) -> bool:
    caller = caller_of(ctx)
    return caller is None or caller.may_see(letter.message.kind, letter.message.type)


def _page(schemas: dict[str, dict[str, Any]], cursor: str, most_bytes: int | None) -> dict[str, Any]:
    """All of it where it fits; else an overview, and with a cursor the page that begins there."""
    names = list(schemas)
    if cursor and cursor not in schemas:
        text = "Schema validation failed: data.cursor: no such type"
        raise Fail(422, text, remedy="leave the cursor out to begin again")
    left = names[names.index(cursor) :] if cursor else names
    whole = {name: schemas[name] for name in left}
    fitting_names = _names_that_fit(whole, most_bytes)
    if len(fitting_names) == len(left):
        return {"schemas": whole}
    if not cursor:
        overview = {name: _in_short(each) for name, each in schemas.items()}
        return {"schemas": {name: overview[name] for name in _names_that_fit(overview, most_bytes)}, "cursor": left[0]}
    if not fitting_names:  # one that is too long for any line
        fitting_names, whole = left[:1], {left[0]: _in_short(schemas[left[0]])}
    page: dict[str, Any] = {"schemas": {name: whole[name] for name in fitting_names}}
    if len(fitting_names) < len(left):
        page["cursor"] = left[len(fitting_names)]
    return page


def _names_that_fit(entries: dict[str, Any], most_bytes: int | None) -> list[str]:
    """The first names, as many as fit with what they name; all where there is no limit."""
    names = list(entries)
    return names if most_bytes is None else names[: len(fitting([(name, entries[name]) for name in names], most_bytes))]


def _in_short(described: dict[str, Any]) -> dict[str, Any]:
    first = described.get("description", "").partition("\n")[0].partition(". ")[0]
    node = {"node": described["node"]} if "node" in described else {}
    return {"kind": described["kind"], "description": first[:_SHORT], **node}


def _schemas(contract: Contract) -> dict[str, Any]:
    return {
        "kind": contract.kind,
        "description": contract.description,
        "input": contract.input.json_schema(),
        "output": contract.output.json_schema(),
    }
