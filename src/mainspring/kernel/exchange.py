"""Exchange: the turns every message takes, and the one place all of them pass.

A turn does little and never waits: witness the message, find its place, enter it in the pending table, hand it to the
slot. Errors the kernel makes go to the system lane, everything else to the user lane. No turn runs a handler: slots
queue, and actors take from their queue in tasks of their own.

Events and errors never cause a routing error. An event without subscribers, an outcome nobody waits for and a reply
that came after the timeout end here, counted and witnessed, and make nothing new.

The reasons are in docs/decisions/kernel.md.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.kernel import errors as faults
from mainspring.kernel.contracts import Contract
from mainspring.kernel.durable.dead_messages import DeadMessages, ReplacedRecord
from mainspring.kernel.errors import CapabilityError, ErrorData
from mainspring.kernel.mail import Mail, NoReplyOrigin, Origin, same_content
from mainspring.kernel.remote import NoRemoteNodes
from mainspring.message import (
    Ids,
    Message,
    Metadata,
    Retry,
    encode_data,
    may_exceed_a_double,
    number_mistake,
    validation_text,
)
from mainspring.telemetry import KeptError, OpenSpan, Recorder, messaging, trace_headers, tracing

if TYPE_CHECKING:
    from mainspring.kernel.durable.commands import DurableCommands
    from mainspring.kernel.supervisor import ActorSlot
    from mainspring.loop import Clock, Loop

logger: logging.Logger = logging.getLogger("mainspring.kernel")

FAULTS: Final = 64  # faults of actors that stay readable, with the errors the kernel made of them
WITNESSED: Final = 10_000  # messages whose headers stay readable; their data is not kept
NS_PER_MS: Final = 1_000_000
_WORTH_SWEEPING: Final = 256
_LONGEST_MISTAKE: Final = 64  # characters; comparing long texts takes long, and a long type is no slip of the pen
_MISTAKES: Final = 256  # remembered, because a wrong type usually comes again and again

Observer = Callable[[Message], Any]
Route = tuple[Contract, "ActorSlot"]


class Router:
    """The same message always leads to the same place.

    Two indexes, built once at boot: (kind, type) to the one slot that handles it, and event type to the slots that
    subscribed, in registration order. Looking up is one dictionary access however many capabilities there are.
    """

    def __init__(self) -> None:
        self.commands: dict[str, Route] = {}
        self.queries: dict[str, Route] = {}
        self.subscriptions: dict[str, list[Route]] = {}
        self.everywhere: dict[str, list[Route]] = {}  # of the subscriptions, those to events of other nodes too
        self.slots: dict[str, ActorSlot] = {}
        self._nearest = lru_cache(_MISTAKES)(self._find_nearest)

    def add(self, slot: ActorSlot) -> None:
        """Enter a slot's handles and subscriptions; a key that is taken aborts, and the error names it."""
        if slot.id in self.slots:
            raise CapabilityError(
                f"two capabilities are named {slot.id!r}", remedy="give one of them another id or first segment"
            )
        self.slots[slot.id] = slot
        for contract in slot.plan.contracts:
            index = self.commands if contract.kind == "command" else self.queries
            taken = index.get(contract.type)
            if taken is not None:
                both = f"{_handler_name(*taken)} and {_handler_name(contract, slot)}"
                raise CapabilityError(
                    f"Duplicate handler for {contract.kind}:{contract.type}: {both}",
                    remedy="give one of them another type",
                )
            index[contract.type] = (contract, slot)
        for name, contracts in slot.plan.listeners.items():
            self.subscriptions.setdefault(name, []).extend((contract, slot) for contract in contracts)
        for name, contracts in slot.plan.everywhere.items():
            self.everywhere.setdefault(name, []).extend((contract, slot) for contract in contracts)

    def find(self, type: str) -> Contract | None:
        """The contract of a type, whatever its kind; a command wins over a query of the same name."""
        route = self.commands.get(type) or self.queries.get(type)
        return None if route is None else route[0]

    def contracts(self) -> list[Contract]:
        """Every contract, in registration order."""
        return [contract for slot in self.slots.values() for contract in slot.plan.contracts]

    def subscribers(self) -> dict[str, list[str]]:
        """Event type to capability ids, each once, in registration order."""
        return {name: list(dict.fromkeys(slot.id for _, slot in routes)) for name, routes in self.subscriptions.items()}

    def suggestion(self, kind: str, type: str) -> str:
        """What the sender of a type without a handler may have meant; empty when nothing is near."""
        route = (self.queries if kind == "command" else self.commands).get(type)
        if route is not None:
            return f"{type} is a {route[0].kind}"
        return "" if len(type) > _LONGEST_MISTAKE else self._nearest(type)

    def _find_nearest(self, type: str) -> str:
        first, _, second = type.partition(".")
        near = [name for name in (*self.commands, *self.queries) if {first, second} & set(name.split("."))]
        closest = get_close_matches(type, near, n=1)
        return f"perhaps {closest[0]} is meant" if closest else ""


def _handler_name(contract: Contract, slot: ActorSlot) -> str:
    """The function of a contract, and where it is written, where it has one with a name; else its capability."""
    function = contract.function
    name = getattr(function, "__qualname__", "")  # a partial, or an object that can be called, has none
    if function is None or not name:
        return repr(slot.id)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} of {function.__module__}" if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


class Deadlines:
    """The timeout of every open request, for the price of one timer.

    Calls `on_timeout(mail)` as a user turn, never early, for every mail that is still open by then.

    Nearly all requests use the default timeout, so their deadlines come in the order they were made: a queue is enough,
    and only its head needs a timer on the wheel. An answered request is not searched for; it stays in the queue as a
    closed mail and is dropped as soon as it is the oldest, or when the queue has doubled. A request with a timeout of
    its own gets its own timer.
    """

    def __init__(self, loop: Loop, default_ms: float, on_timeout: Callable[[Mail], None]) -> None:
        self._loop = loop
        self._now_ns = loop.clock.now_ns
        self.default_ms = default_ms
        self._wait_ns = math.ceil(default_ms * NS_PER_MS)
        self._on_timeout = on_timeout
        self._queue: deque[tuple[int, Mail]] = deque()
        self._sweep_at = _WORTH_SWEEPING
        self._armed = False

    def start(self, mail: Mail, timeout_ms: float | None) -> None:
        if timeout_ms is not None:
            mail.timer = self._loop.schedule(timeout_ms, self._own, mail, kind="timeout", ref=False)
            return
        deadline = mail.began_ns + self._wait_ns
        queue = self._queue
        while queue and queue[0][1].closed:
            queue.popleft()
        queue.append((deadline, mail))
        if not self._armed:
            self._arm(deadline)
        if len(queue) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what is closed; look again when the queue has doubled."""
        self._queue = deque(item for item in self._queue if not item[1].closed)
        self._sweep_at = max(_WORTH_SWEEPING, 2 * len(self._queue))

    def _arm(self, deadline_ns: int) -> None:
        self._armed = True
        self._loop.schedule_at(-(-deadline_ns // NS_PER_MS), self._due, None, kind="timeout", ref=False)

    def _due(self, _: Any) -> None:
        self._armed = False
        queue, now = self._queue, self._now_ns()
        while queue and (queue[0][1].closed or queue[0][0] <= now):
            mail = queue.popleft()[1]
            if not mail.closed:
                self._on_timeout(mail)
        if queue:
            self._arm(queue[0][0])

    def _own(self, mail: Mail) -> None:
        mail.timer = None
        if not mail.closed:
            self._on_timeout(mail)


class Exchange:
    """Owns the pending table and the turns. One per kernel."""

    def __init__(self, loop: Loop, clock: Clock, ids: Ids, default_timeout_ms: float) -> None:
        self.loop = loop
        self.clock = clock
        self.wall_ms: Callable[[], int] = clock.wall_ms
        self._now_ns = clock.now_ns
        self.ids = ids
        self.deadlines: Deadlines = Deadlines(loop, default_timeout_ms, self._timed_out)
        self.router: Router = Router()
        self.no_reply: NoReplyOrigin = NoReplyOrigin()
        self.observers: list[Observer] = []
        self.streams: dict[Any, Callable[[str], bool]] = {}
        self.recent_headers: deque[tuple[str, str, Metadata]] = deque(maxlen=WITNESSED)
        self.recent_faults: deque[Message] = deque(maxlen=FAULTS)
        self._failures: dict[str, KeptError] = {}  # of those, by the id of the error
        self.remote: NoRemoteNodes = NoRemoteNodes()
        self.durable: DurableCommands | None = None
        self.try_again: Callable[[Mail, Message], bool] = lambda mail, error: False
        self.dead_messages: DeadMessages = DeadMessages(self)
        self.pending: set[Mail] = set()
        self.open_events: int = 0
        self.closing = False
        self.counters: dict[str, int] = dict.fromkeys(
            ("late", "unmatched", "sunk", "timeouts", "faults", "restarts"), 0
        )
        self.refused: dict[str, int] = {}  # requests that reached no actor, by the type of the error
        self.waits_for_quiet = False
        self.on_quiet: Callable[[], Any] = lambda: None

    # --- in ------------------------------------------------------------------------------------------------------

    def ingest(self, message: Message, origin: Origin) -> None:
        """Take a valid message from outside. It waits in the user lane, whatever its type is called."""
        kind = message.kind
        if kind == "command" or kind == "query":
            self.loop.post(self.turn_request, (message, origin))
        elif kind == "event":
            if message.type[:4] == "Sys.":  # only the kernel itself says what the kernel did
                self.loop.post(self._turn_forged, (message, origin))
            elif may_exceed_a_double(message.raw) and (wrong := number_mistake(message.raw)):
                # A handler would refuse it, and subscribers would be sent what they cannot read.
                text = f"Schema validation failed: data: {wrong}"
                self.refuse(message, origin, faults.SCHEMA_ERROR, 422, text, "write it as a text")
            else:
                self.loop.post(self.turn_event, (message, origin))
        else:
            self.loop.post(self._turn_stray, (message, origin))

    def reject(self, origin: Origin, code: int, text: str, *, id: str | None = None, type: str = "") -> None:
        """Answer what never became a message: one `Sys.SchemaError`, with causation when an id could be read."""
        self.refused[faults.SCHEMA_ERROR] = self.refused.get(faults.SCHEMA_ERROR, 0) + 1
        data = ErrorData(code, text, requestType=type)
        error = self.make("error", faults.SCHEMA_ERROR, encode_data(data), causation=id)
        self.loop.post_system(self._turn_refusal, (error, origin, None))

    def make(
        self, kind: Any, type: str, raw: msgspec.Raw, causation: str | None = None, correlation: str | None = None
    ) -> Message:
        """A new message of the kernel's own."""
        trace = tracing.here() if kind == "event" else None
        return Message(kind, type, raw, Metadata(self.ids(), self.clock.wall_ms(), correlation, causation, None, trace))

    def caused(
        self,
        cause: Message,
        kind: Any,
        type: str,
        raw: msgspec.Raw,
        timeout: float | None = None,
        retry: Retry | None = None,
    ) -> Message:
        """A new message, sent while handling `cause`: its causation is set here and nowhere else."""
        parent = cause.metadata
        trace = parent.traceparent if tracing.recorder is None else tracing.here() or parent.traceparent
        metadata = Metadata(
            self.ids(), self.clock.wall_ms(), parent.correlation, parent.id, timeout, trace, parent.tracestate, retry
        )
        return Message(kind, type, raw, metadata)

    def error(self, cause: Message, type: str, data: ErrorData) -> Message:
        parent = cause.metadata
        metadata = Metadata(self.ids(), self.clock.wall_ms(), parent.correlation, parent.id)
        return Message("error", type, encode_data(data), metadata)

    def refuse(
        self, message: Message, origin: Origin, type: str, code: int, text: str, remedy: str = "", capability: str = ""
    ) -> None:
        """Answer a request that is not dispatched."""
        self.refused[type] = self.refused.get(type, 0) + 1
        data = ErrorData(code, text, remedy=remedy, requestType=message.type, capabilityId=capability)
        self.loop.post_system(self._turn_refusal, (self.error(message, type, data), origin, message))

    # --- turns ---------------------------------------------------------------------------------------------------

    def turn_request(self, item: tuple[Message, Origin]) -> None:
        """A command or a query: exactly one actor, exactly one outcome."""
        message, origin = item
        self.recent_headers.append((message.kind, message.type, message.metadata))
        if self.observers:
            self._notify_observers(message)
        ident = message.metadata.id
        earlier = origin.open.get(ident)
        if earlier is not None:
            self._repeated(earlier, message, origin)
            return
        route = (self.router.commands if message.kind == "command" else self.router.queries).get(message.type)
        if route is None:
            self._not_here(message, origin)
            return
        contract, slot = route
        if self.closing and origin.external:
            self._refuse_closing(message, origin)
            return
        try:
            value = contract.input.decode(message.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            text = f"Schema validation failed: data: {validation_text(wrong)}"
            remedy = f"`mainspring describe {message.type}` shows the schema"
            self.refuse(message, origin, faults.SCHEMA_ERROR, 422, text, remedy)
            return
        mail = Mail(message, contract, slot, value, origin)
        if slot.unhealthy:
            self._refuse_unhealthy(mail)
            return
        if slot.durable and self.durable is not None and message.kind == "command":
            self.durable.admit(mail)
            return
        self.open_request(mail)
        slot.accept(mail)

    def _not_here(self, message: Message, origin: Origin) -> None:
        """A request that no capability of this node handles: perhaps another node does."""
        node = self.remote.find(message, origin)
        if node is None:
            everything = "`mainspring describe` lists what this node handles"
            remedy = "; ".join(filter(None, (self.router.suggestion(message.kind, message.type), everything)))
            self.refuse(message, origin, faults.ROUTING_ERROR, 404, f"no handler for this {message.kind}", remedy)
        elif self.closing and origin.external:
            self._refuse_closing(message, origin)
        else:
            self.remote.forward(message, origin, node)

    def _refuse_closing(self, message: Message, origin: Origin) -> None:
        text, remedy = "the node is shutting down", "send it again to the next node"
        self.refuse(message, origin, faults.SHUTTING_DOWN, 503, text, remedy)

    def open_request(self, mail: Mail) -> None:
        """Enter a request in the pending table and arm its timeout. Always before the actor can see it."""
        assert mail.origin is not None
        metadata = mail.message.metadata
        mail.origin.open[metadata.id] = mail
        mail.began_ns = self._now_ns()
        if tracing.recorder is not None:
            mail.doing = begin_span(tracing.recorder, mail)
        self.pending.add(mail)
        self.deadlines.start(mail, metadata.timeout)

    def turn_remote_event(self, event: Message) -> None:
        """An event of another node: those who want it from everywhere get it."""
        self.turn_event((event, None), True)

    def turn_event(self, item: tuple[Message, Origin | None], from_another_node: bool = False) -> None:
        """An event: every subscriber once, in subscription order. None is fine too."""
        message, origin = item
        self.witness(message)
        subscriptions = self.router.everywhere if from_another_node else self.router.subscriptions
        if self.remote.spreads and not from_another_node:
            self.remote.spread(message)
        crowded: ActorSlot | None = None
        for contract, slot in subscriptions.get(message.type, ()):
            try:
                value = contract.input.decode(message.raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
                self._report_unfit(message, slot, wrong)
                continue
            if not slot.unhealthy:
                self.open_events += 1
                slot.accept(Mail(message, contract, slot, value, None))
                if origin is not None and slot.crowded:
                    crowded = slot
        if self.streams:
            self.turn_stream(message)
        if origin is not None and crowded is not None:
            crowded.hold_sender(origin)
        elif origin is not None:
            origin.settled()

    def _report_unfit(self, message: Message, slot: ActorSlot, wrong: Exception) -> None:
        text = f"Schema validation failed: data: {validation_text(wrong)}"
        data = ErrorData(422, text, requestType=message.type, capabilityId=slot.id)
        self.loop.post_system(self._turn_sink, (self.error(message, faults.SCHEMA_ERROR, data), message))

    def turn_stream(self, event: Message) -> None:
        """Send an event to every connection that asked for its type."""
        for connection, wants in tuple(self.streams.items()):
            if wants(event.type):
                connection.stream(event)

    def turn_outcome(self, item: tuple[Mail, Message]) -> None:
        """What an actor answered. Only the first outcome of a request counts."""
        if item[0].unrecorded and self.durable is not None:
            self.durable.record(*item)
        else:
            self.conclude(*item)

    def conclude(self, mail: Mail, message: Message) -> None:
        """Close a request and write its outcome to where it came from; too late is too late."""
        self.recent_headers.append((message.kind, message.type, message.metadata))
        if self.observers:
            self._notify_observers(message)
        if mail.closed:
            self.counters["late"] += 1
            return
        counts = mail.contract.counts
        took_ns = self._now_ns() - mail.began_ns
        counts.ns.counts[took_ns.bit_length()] += 1
        counts.ns.total += took_ns
        origin = mail.origin
        assert origin is not None
        if message.kind != "reply":
            counts.failed(message.type)
            if mail.doing is not None:
                mail.doing.end(*_told_in_spans(message))
            if mail.message.metadata.retry is not None and not mail.unrecorded:
                if self.try_again(mail, message):
                    return
                if not isinstance(origin, NoReplyOrigin):  # it has a requester, and is a dead letter all the same
                    self.dead_messages.gave_up(mail.message, message)
        self.close(mail)
        if origin is self.no_reply:
            self.sink(message, mail.message)
        elif not origin.deliver(message):
            self._deliver_less(origin, message, mail.message)

    def fail(self, mail: Mail, type: str, code: int, text: str, remedy: str = "", **ids: str) -> None:
        """Close a request with an error of the kernel's own."""
        data = ErrorData(code, text, remedy=remedy, requestType=mail.message.type, **ids)
        self.conclude(mail, self.error(mail.message, type, data))

    def close(self, mail: Mail) -> None:
        """Take a request out of the pending table; its timer with it."""
        mail.closed = True
        pending = self.pending
        pending.discard(mail)
        origin = mail.origin
        assert origin is not None
        if origin.open.get(mail.message.metadata.id) is mail:
            del origin.open[mail.message.metadata.id]
        if mail.timer is not None:
            self.loop.cancel(mail.timer)
            mail.timer = None
        if mail.doing is not None:
            mail.doing.end()
        if self.waits_for_quiet and not pending:
            self.on_quiet()

    def event_done(self) -> None:
        self.open_events -= 1
        if self.waits_for_quiet and not self.open_events:
            self.on_quiet()

    def _timed_out(self, mail: Mail) -> None:
        self.counters["timeouts"] += 1
        remedy = "ask with a larger metadata.timeout, or look why the actor is busy"
        ids = {"originalId": mail.message.metadata.id, "capabilityId": mail.slot.id}
        self.fail(mail, faults.TIMEOUT, 504, "Request timed out", remedy, **ids)

    def _turn_refusal(self, item: tuple[Message, Origin, Message | None]) -> None:
        error, origin, message = item
        self.witness(error)
        if origin is self.no_reply:
            self.sink(error, message)
        elif not origin.deliver(error):
            self._deliver_less(origin, error, None)

    def _turn_sink(self, item: tuple[Message, Message]) -> None:
        self.witness(item[0])
        self.sink(*item)

    def report_fault(self, error: Message, request: Message | None = None, failure: KeptError | None = None) -> None:
        """Keep an actor's fault, and tell it to handlers and connections that listen for its type as an event."""
        if failure is not None:
            if len(self._failures) >= FAULTS:
                del self._failures[next(iter(self._failures))]
            self._failures[error.metadata.id] = failure
        self.recent_faults.append(error)
        if request is not None and request.type[:4] == "Sys.":
            return  # a handler of faults has failed: telling it would go on for ever
        if error.type in self.router.subscriptions or self.streams:
            metadata = msgspec.structs.replace(error.metadata, id=self.ids())
            self.loop.post_system(self.turn_event, (Message("event", error.type, error.raw, metadata), None))
        if error.type == faults.ACTOR_CRASH and faults.ACTOR_FAULT in self.router.subscriptions:
            metadata = msgspec.structs.replace(error.metadata, id=self.ids())
            self.loop.post_system(self._turn_crash, Message("event", faults.ACTOR_FAULT, error.raw, metadata))

    def _turn_crash(self, message: Message) -> None:
        """A crash is a fault, too: handlers of faults hear it. Connections see the crash itself."""
        self.witness(message)
        for contract, slot in self.router.subscriptions[message.type]:
            try:
                value = contract.input.decode(message.raw)
            except msgspec.DecodeError as wrong:
                self._report_unfit(message, slot, wrong)
                continue
            if not slot.unhealthy:
                self.open_events += 1
                slot.accept(Mail(message, contract, slot, value, None))

    def failure_of(self, error: Message) -> KeptError | None:
        """The exception behind an error, if it was one and is among the latest."""
        return self._failures.get(error.metadata.id)

    def _turn_forged(self, item: tuple[Message, Origin]) -> None:
        """An event of the kernel's own types from outside: it is seen, and nobody gets it."""
        message, origin = item
        self.witness(message)
        self.counters["unmatched"] += 1
        origin.settled()

    def _turn_stray(self, item: tuple[Message, Origin]) -> None:
        """A reply or an error from outside: only the actor that was asked can answer, so it matches nothing."""
        message, origin = item
        self.witness(message)
        self.counters["unmatched"] += 1
        origin.settled()

    def _repeated(self, earlier: Mail, message: Message, origin: Origin) -> None:
        if same_content(earlier.message, message, earlier.contract.input):
            origin.settled()
            return
        text = "this id is in flight with other content"
        self.refuse(message, origin, faults.DUPLICATE_ID, 409, text, "give every request its own id")

    # --- out -----------------------------------------------------------------------------------------------------

    def _deliver_less(self, origin: Origin, message: Message, request: Message | None) -> None:
        """An outcome that does not fit its line becomes a 413, with as much of its causation as fits."""
        metadata = message.metadata
        type = "" if request is None else request.type
        for causation, correlation, request_type in (
            (metadata.causation, metadata.correlation, type),
            (metadata.causation, None, type),
            (None, None, type),
            (None, None, ""),
        ):
            text, remedy = "the answer does not fit one line of 16KB", "ask for less; a handler can return a Blob"
            data = encode_data(ErrorData(413, text, remedy=remedy, requestType=request_type))
            error = self.make("error", faults.TOO_LARGE, data, causation=causation, correlation=correlation)
            if origin.deliver(error):
                self.witness(error)
                return

    def sink(self, outcome: Message, message: Message | None = None, kept: ReplacedRecord | None = None) -> None:
        """Where outcomes go that nobody waits for. Errors are logged by type and cause, never by content.

        The message that failed, if there was one, becomes a dead letter, in place of the record that has `kept` it.
        """
        self.counters["sunk"] += 1
        if outcome.kind == "error":
            cause = outcome.metadata.causation
            logger.warning("%s, caused by %s, reached nobody", outcome.type, cause or "nothing known")
            if message is not None:
                self.dead_messages.add(message, outcome, kept)

    def witness(self, message: Message) -> None:
        """The choke point: every message passes here exactly once, in the order of the turns.

        The two hottest turns do the same in place, because a call costs as much as the work.
        """
        self.recent_headers.append((message.kind, message.type, message.metadata))
        if self.observers:
            self._notify_observers(message)

    def _notify_observers(self, message: Message) -> None:
        for observer in tuple(self.observers):
            try:
                observer(message)
            except Exception:
                logger.exception("an observer failed")

    def forget(self, origin: Origin) -> None:
        """A connection is gone: drop what it waited for. The work itself goes on; late replies are discarded."""
        self.streams.pop(origin, None)
        for mail in tuple(origin.open.values()):
            self.close(mail)

    def _refuse_unhealthy(self, mail: Mail) -> None:
        text, remedy = faults.unhealthy(mail.slot.id)
        if mail.message.metadata.retry is None:
            assert mail.origin is not None
            self.refuse(mail.message, mail.origin, faults.UNHEALTHY, 503, text, remedy, mail.slot.id)
        else:  # it may be started again before the last attempt
            self.open_request(mail)
            self.fail(mail, faults.UNHEALTHY, 503, text, remedy, capabilityId=mail.slot.id)


def begin_span(recorder: Recorder, mail: Mail) -> OpenSpan:
    """The span of a message that an actor handles, below the one it was sent in."""
    message = mail.message
    metadata = message.metadata
    attributes = messaging(
        "handle",
        "process",
        message.type,
        message_id=metadata.id,
        conversation=metadata.correlation,
        capability=mail.slot.id,
    )
    kind = "CONSUMER" if mail.origin is None else "SERVER"
    parent = trace_headers(metadata.traceparent, metadata.tracestate)
    return recorder.begin(f"{message.kind} {message.type}", kind, attributes, parent=parent)


def _told_in_spans(error: Message) -> tuple[str, str]:
    """The text of an error and its kind: the kernel's own by their types, a program's by their codes."""
    data: Any = error.data if isinstance(error.data, dict) else {}
    kind = error.type if error.type.startswith("Sys.") else str(data.get("code", "_OTHER"))
    return f"{kind}: {data.get('message', '')}", kind
