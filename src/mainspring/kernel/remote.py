"""Requests to other nodes: the rest of the cluster as one more place that answers.

A command or a query that nobody handles here, but another node does, is appended to that node's **inbox**: a topic of
the log that no client can name. Its answer comes to this node's inbox, and concludes the request as if an actor of this
node had given it. What was read is removed, so an inbox is as long as what is on its way.

The request carries a guard on the lease of the node that it is meant for, and the answer one on the lease of the node
that asked: nothing is left in the inbox of a node that is gone. If the other node loses its lease before it answers,
the requester gets an error; whether a command was carried out nobody knows then, unless it was a durable one, which
another node takes over and whose outcome can be asked for. The time for an answer is counted here, as for any request.
A requester that stops waiting does not take the request back; that, too, is as it is on one node.

A request is passed on once: the node that got it answers it or says that it cannot.

An event goes to the inboxes of the nodes that have a handler which wants it from everywhere (`everywhere=True`), and of
no other node. Nobody waits for it: a node that is gone, or that others do not know yet, misses it. What every node must
get is published to a topic.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import msgspec

from mainspring.cluster import FORMAT, Membership, NodeView, inbox
from mainspring.errors import Fail, MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.contracts import Contract, Shape
from mainspring.kernel.mail import AskOrigin, Mail, Origin
from mainspring.log import Append, Batch, DamagedEvent, InDoubt, Log, Receipt, Refused, Remove
from mainspring.loop import BackgroundTasks, pause
from mainspring.message import Message, Metadata, encode_data

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange
    from mainspring.kernel.supervisor import ActorSlot

logger: logging.Logger = logging.getLogger("mainspring.kernel")

PAGE: Final = 256
_RETRY_MS: Final = 500
_TRIES: Final = 3  # nodes that turn out to be gone before a request fails
_WORTH_SWEEPING: Final = 1_024
_LISTENERS_MS: Final = 500  # how long the list of nodes that listen for events is taken for right
EVENT: Final = "event:"  # before the type, in what a node tells that it serves


class NoRemoteNodes:
    """Of a node that is alone on its log: every request is answered here or not at all."""

    def start(self) -> None:
        """Take requests of other nodes from now on, and those that came earlier."""

    async def stop(self) -> None:
        """Take no further requests."""

    def served(self) -> dict[str, list[NodeView]]:
        """`kind:Type` of everything other nodes handle, with those nodes."""
        return {}

    def contracts(self) -> list[Contract]:
        """What was passed on so far, with the counts of it."""
        return []

    spreads: ClassVar[bool] = False  # whether events may have to be passed on

    def spread(self, event: Message) -> None:
        """Pass an event on to the nodes whose handlers want it from everywhere, in its turn."""

    def find(self, message: Message, origin: Origin) -> NodeView | None:
        """Another node that handles a request; None also for a request that came from one."""
        return None

    def forward(self, message: Message, origin: Origin, node: NodeView) -> None:
        """Pass a request on, in its turn."""
        raise AssertionError("a node that is alone finds no other node to pass a request on to")

    def ask(self, node: NodeView, kind: str, type: str, data: Any, timeout_ms: float) -> asyncio.Future[Any]:
        """Ask one node in particular; its reply's data, or `Fail`."""
        raise Fail(503, f"node {node.name} cannot be reached from here")


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What lies in an inbox: a request (with the node that asks), or the answer to one. `call` connects the two."""

    call: str
    message: Message
    node: str = ""  # that asks; empty: this is an answer
    epoch: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Letter).decode


class RemoteSlot:
    """Takes the place of an actor's slot in a mail that another node answers. Only the id is ever read."""

    durable = False
    unhealthy = False

    def __init__(self, node: str) -> None:
        self.id: str = f"node {node}"


class RemoteOrigin:
    """The origin of a request that came from another node: its answer goes to that node's inbox."""

    external = True
    passed_on = True

    def __init__(self, remote: RemoteNodes, letter: Letter) -> None:
        self.open: dict[str, Mail] = {}
        self._remote = remote
        self._letter = letter

    def deliver(self, message: Message) -> bool:
        self._remote.answer(self._letter, message)
        return True

    def settled(self) -> None:
        return


class _Call(msgspec.Struct, eq=False):
    mail: Mail
    node: NodeView
    tries: int = 1


class RemoteNodes(NoRemoteNodes):
    """Sends requests to other nodes and takes theirs. Use it between the kernel's start and its stop."""

    spreads = True

    def __init__(self, log: Log, exchange: Exchange, cluster: Membership) -> None:
        self._log = log
        self._exchange = exchange
        self._cluster = cluster
        self._calls: dict[str, _Call] = {}
        self._sweep_at = _WORTH_SWEEPING
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._listeners: dict[str, list[NodeView]] = {}  # by the type of events that they want from everywhere
        self._listeners_until = 0
        self._turn = 0
        self._next = 1
        self._inbox = inbox(cluster.node)
        self._arrived = asyncio.Event()
        self._tasks = BackgroundTasks(logger, "requests to other nodes")

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._cluster.on_death(self._node_gone)
        self._cluster.on_fenced(self._fenced)
        self._log.watch_topic(self._inbox, lambda _: self._arrived.set())
        self._arrived.set()
        self._tasks.start(self._read_inbox(), "inbox")

    async def stop(self) -> None:
        await self._tasks.cancel()

    # --- who serves what -----------------------------------------------------------------------------------------

    def _others(self) -> list[NodeView]:
        """The other nodes that can read the records of this one."""
        return [node for node in self._cluster.nodes() if not node.here and node.format <= FORMAT]

    def served(self) -> dict[str, list[NodeView]]:
        nodes: dict[str, list[NodeView]] = {}
        for node in self._others():
            for handled in node.serves:
                if not handled.startswith(EVENT):
                    nodes.setdefault(handled, []).append(node)
        return nodes

    def spread(self, event: Message) -> None:
        now = self._exchange.clock.now_ms()
        if now >= self._listeners_until:
            self._listeners_until = now + _LISTENERS_MS
            self._listeners = {}
            for node in self._others():
                for handled in node.serves:
                    if handled.startswith(EVENT):
                        self._listeners.setdefault(handled.removeprefix(EVENT), []).append(node)
        for node in self._listeners.get(event.type, ()):
            batch = Batch()
            letter = Letter(self._exchange.ids(), event, self._cluster.node, self._cluster.epoch)
            self._post(batch, node.name, node.epoch, letter)
            self._log.submit(batch, _ignored)

    def _choose(self, kind: str, type: str, but: int = 0) -> NodeView | None:
        """Nodes that gave a sign of life lately take turns; the silent ones are asked when there is no other."""
        wanted = f"{kind}:{type}"
        able = [node for node in self._others() if wanted in node.serves and node.epoch != but]
        lively = [node for node in able if node.silent_ms < self._cluster.lease_ms // 2] or able
        if not lively:
            return None
        self._turn += 1
        return lively[self._turn % len(lively)]

    # --- asking --------------------------------------------------------------------------------------------------

    def find(self, message: Message, origin: Origin) -> NodeView | None:
        return None if isinstance(origin, RemoteOrigin) else self._choose(message.kind, message.type)

    def forward(self, message: Message, origin: Origin, node: NodeView) -> None:
        # Nothing of a slot is used for a mail that no actor gets, except its id.
        mail = Mail(message, self._contract(message), cast("ActorSlot", RemoteSlot(node.name)), None, origin)
        self._exchange.open_request(mail)
        self._send(_Call(mail, node))

    def ask(self, node: NodeView, kind: str, type: str, data: Any, timeout_ms: float) -> asyncio.Future[Any]:
        exchange = self._exchange
        metadata = Metadata(exchange.ids(), exchange.wall_ms(), timeout=timeout_ms)
        message = Message(kind, type, encode_data(data), metadata)  # type: ignore[arg-type]
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange.witness(message)
        self.forward(message, AskOrigin(waiter), node)
        return waiter

    def contracts(self) -> list[Contract]:
        return list(self._contracts.values())

    def _contract(self, message: Message) -> Contract:
        key = (message.kind, message.type)
        if key not in self._contracts:
            anything = Shape(Any, where=f"{message.kind} {message.type}")
            self._contracts[key] = Contract(message.kind, message.type, "", anything, anything)
        return self._contracts[key]

    def _send(self, call: _Call) -> None:
        name, message, doing = self._exchange.ids(), call.mail.message, call.mail.doing
        timeout = message.metadata.timeout or self._exchange.deadlines.default_ms
        trace = message.metadata.traceparent if doing is None else doing.traceparent
        metadata = msgspec.structs.replace(message.metadata, timeout=timeout, traceparent=trace)
        letter = Letter(
            name, msgspec.structs.replace(message, metadata=metadata), self._cluster.node, self._cluster.epoch
        )
        self._calls[name] = call
        if len(self._calls) > self._sweep_at:
            self._calls = {name: call for name, call in self._calls.items() if not call.mail.closed}
            self._sweep_at = max(_WORTH_SWEEPING, 2 * len(self._calls))
        batch = Batch()
        self._cluster.guard(batch)
        self._post(batch, call.node.name, call.node.epoch, letter)

        def sent(result: Any) -> None:
            self._exchange.loop.post(self._turn_sent, (name, result))

        self._log.submit(batch, sent)

    def _post(self, batch: Batch, node: str, epoch: int, letter: Letter) -> None:
        self._cluster.guard_of(batch, node, epoch)
        ts = self._exchange.clock.wall_ms()
        batch.append(Append(inbox(node), 0, self._exchange.ids(), ts, _encode(letter)))

    def _turn_sent(self, item: tuple[str, Any]) -> None:
        name, result = item
        if isinstance(result, Receipt | InDoubt):
            return  # it is there, or may be: the answer, the other node's end or the timeout decides
        call = self._calls.pop(name, None)
        if call is None or call.mail.closed:
            return
        if isinstance(result, Refused) and self._try_another_node(call):
            return
        text = "the request could not be handed to another node"
        self._fail(call.mail, f"{text}: {result.message}", "nothing was done: try again")

    def _fail(self, mail: Mail, text: str, remedy: str) -> None:
        if not mail.closed:
            self._exchange.fail(mail, faults.UNREACHABLE, 503, text, remedy, originalId=mail.message.id)

    def _node_gone(self, epoch: int) -> None:
        for name, call in tuple(self._calls.items()):
            if call.node.epoch == epoch:
                del self._calls[name]
                text = f"node {call.node.name}, which handles this, is gone"
                self._fail(call.mail, text, _try_again(call.mail.message))

    def _fenced(self, _: int) -> None:
        """Answers to the former epoch are not sent any more."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            text = "this node was cut off from the others while it waited"
            self._fail(call.mail, text, _try_again(call.mail.message))

    # --- answering -----------------------------------------------------------------------------------------------

    def answer(self, asked: Letter, message: Message) -> None:
        """Send an outcome to the node that asked, again and again while the log is away and the node may wait."""
        timeout = asked.message.metadata.timeout or self._exchange.deadlines.default_ms
        self._answer((asked, message, self._exchange.clock.now_ms() + timeout))

    def _answer(self, item: tuple[Letter, Message, float]) -> None:
        asked, message, deadline = item
        loop = self._exchange.loop
        batch = Batch()
        self._post(batch, asked.node, asked.epoch, Letter(asked.call, message))

        def sent(result: Any) -> None:
            if isinstance(result, Receipt | Refused) or loop.clock.now_ms() > deadline:
                return  # it is there, or the node that would read it is gone
            loop.schedule(_RETRY_MS, self._answer, item, ref=False)

        self._log.submit(batch, sent)

    def _turn_answer(self, letter: Letter) -> None:
        call = self._calls.pop(letter.call, None)
        if call is None:
            self._exchange.counters["late"] += 1
        elif letter.message.type != faults.SHUTTING_DOWN or not self._try_another_node(call):
            self._exchange.conclude(call.mail, letter.message)

    def _try_another_node(self, call: _Call) -> bool:
        """A node that is stopping has not begun: give the request to another one, if there is one."""
        message = call.mail.message
        other = self._choose(message.kind, message.type, but=call.node.epoch)
        if other is None or call.mail.closed or call.tries >= _TRIES:
            return False
        self._send(_Call(call.mail, other, call.tries + 1))
        return True

    # --- the inbox -----------------------------------------------------------------------------------------------

    async def _read_inbox(self) -> None:
        topic = self._inbox
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                while events := await self._log.read(topic, 0, self._next, PAGE):
                    for event in events:
                        self._open_letter(event.payload)
                    self._next = events[-1].offset + 1
                    self._log.submit(Batch([Remove(topic, 0, below=self._next)]), _ignored)
            except DamagedEvent as damage:
                self._next = damage.offset + 1
                self._arrived.set()
            except MainspringError as error:
                logger.debug("the inbox cannot be read: %s", error.message)
                self._arrived.set()
                await pause(self._exchange.loop, _RETRY_MS, ref=False)

    def _open_letter(self, payload: bytes) -> None:
        try:
            letter = _decode(payload)
        except msgspec.DecodeError as error:
            logger.warning("a letter of another node cannot be read: %s", error)
            return
        if letter.node and letter.message.kind == "event":
            self._exchange.loop.post(self._exchange.turn_remote_event, letter.message)
        elif letter.node:
            self._exchange.ingest(letter.message, RemoteOrigin(self, letter))
        else:
            self._exchange.loop.post(self._turn_answer, letter)


def _try_again(message: Message) -> str:
    if message.kind == "query":
        return "try again"
    return "it may have been carried out: send it again, with the same id if it is durable; else if twice is harmless"


def _ignored(_: object) -> None:
    """What stays in the inbox is removed with what comes next."""
