"""Slots: one per capability. A slot owns the actor, replaces it when it fails, and keeps the mail safe meanwhile.

Functions of a program have no state of their own: one that raises gives its requester an error, and that is all. Actors
that have state (low-level ones, processes) and handlers that ask for it (`restart=`) are supervised.

A fault of a supervised actor is reported first, with the causation of the request that was being handled, so that the
requester gets it at once. Then the actor is terminated and, after the back-off, replaced; mail that arrived in between
or lay behind the failed message waits for the new actor, in order. The back-off is a timer like any other, so nothing
else waits with it. What an actor of functions is still handling when it is replaced may end. A fault too many inside
the window makes the capability unhealthy: its mail and every later request is refused with 503, and the node is not
ready, until somebody starts it again.

Events are taken without an answer, so nothing tells a client that it sends more of them than their handlers manage. A
slot with too much mail does: it counts a client's event as taken only when there is room again, and a client with too
much that is not taken is read no further.

A slot only listens to its current actor. What an earlier one still sends is ignored.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.errors import Fail
from mainspring.kernel import errors as faults
from mainspring.kernel.actors import FencedActor, HandlerActor, LanedActor, Mailbox
from mainspring.kernel.blobs import Blob, BlobPointer
from mainspring.kernel.capability import RestartPolicy
from mainspring.kernel.contracts import CapabilityPlan, Contract
from mainspring.kernel.errors import BadOutput, ErrorData, NotConfigured, WaitsForItself, text_of
from mainspring.kernel.mail import Mail, Origin
from mainspring.loop import pause
from mainspring.message import Message, Metadata, Retry, encode_data
from mainspring.telemetry import TRACEPARENT, TRACESTATE, KeptError, causation_headers, error_keeping, tracing

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange
    from mainspring.kernel.kernel import Kernel

logger: logging.Logger = logging.getLogger("mainspring.kernel")

# Mail of one actor; beyond it, mail whose requester is gone is dropped, and senders of events wait.
CROWDED: Final = 10_000

_IN_THE_LOG: Final = "the node's log has the traceback"

# the actor, what it was handling, the fault's type and text, and the error that a handler raised
Fault = tuple[Any, "Mail | None", str, str, KeptError | None]


class ActorSlot:
    """The place of one actor. Subclasses know how to make one and how to talk to it."""

    def __init__(self, plan: CapabilityPlan, kernel: Kernel) -> None:
        self.plan = plan
        self.id: str = plan.capability.id
        self.durable: bool = plan.capability.durable
        self.policy: RestartPolicy = plan.capability.restart or kernel.restart or RestartPolicy()
        self.kernel = kernel
        self.exchange: Exchange = kernel.exchange
        self.actor: Any = None
        self.unhealthy: bool = False
        self.restarts: int = 0
        self._held: deque[Mail] = deque()
        self._restarts: deque[int] = deque()  # when, within the window
        self._restart_timer: Any = None
        self._held_senders: list[Origin] = []  # one entry for each event that is not taken yet

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the first actor. What it raises is the reason the boot fails."""
        self.actor = self._spawn()

    def attach(self) -> None:
        """Listen to the actor."""

    def stop(self) -> None:
        """Terminate the actor; mail that was not begun is dropped."""
        if self._restart_timer is not None:
            self.exchange.loop.cancel(self._restart_timer)
            self._restart_timer = None
        self._held.clear()
        actor, self.actor = self.actor, None
        if actor is not None:
            self._dismiss(actor)

    def start_again(self) -> bool:
        """Make a new actor for a capability that was given up, with a new budget. False: it was not given up."""
        if not self.unhealthy:
            return False
        logger.info("%s is started again", self.id)
        self.unhealthy = False
        self._restarts.clear()
        self._turn_restart(None)
        return True

    async def ready(self) -> None:
        """Wait until the first actor can take mail; raises when it never will."""

    async def ended(self) -> None:
        """Wait until what `stop` ended is gone."""

    def accept(self, mail: Mail) -> None:
        """Take a mail. It is posted now, or held behind what came earlier."""
        if self.actor is None or self._held or not mail.stored:
            self._hold(mail)
        else:
            self._post(mail)

    def release(self) -> None:
        """Post what is held, up to the first mail the log does not have yet."""
        while self._held and self.actor is not None and self._held[0].stored:
            self._post(self._held.popleft())

    def drop(self, mail: Mail) -> None:
        """Take back a mail that was never posted."""
        if mail in self._held:
            self._held.remove(mail)
            self.release()

    @property
    def waiting(self) -> int:
        """Mail that no handler has begun with, as far as this side can see."""
        return len(self._held) + (self.actor.waiting if isinstance(self.actor, Mailbox) else 0)

    @property
    def crowded(self) -> bool:
        """Whether so much mail waits that senders of events should."""
        return self.waiting > CROWDED

    def hold_sender(self, origin: Origin) -> None:
        """Settle an event with its sender when half of the mail is done."""
        self._held_senders.append(origin)

    def _event_done(self) -> None:
        self.exchange.event_done()
        self._release_senders()

    def _release_senders(self) -> None:
        """Something was handled: senders that were held may go on if there is room."""
        if self._held_senders and self.waiting <= CROWDED // 2:
            origins, self._held_senders = self._held_senders, []
            for origin in origins:
                origin.settled()

    def _hold(self, mail: Mail) -> None:
        if self.unhealthy:
            self._refuse(mail)
        else:
            self._held.append(mail)

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self, actor: Any, mail: Mail | None, type: str, text: str, failure: KeptError | None = None) -> None:
        """Report a fault of `actor`; it is handled before any further user message."""
        if actor is self.actor:
            self.exchange.loop.post_system(self._turn_fault, (actor, mail, type, text, failure))

    def _turn_fault(self, fault: Fault) -> None:
        actor, mail, type, text, failure = fault
        if actor is not self.actor:
            if mail is not None and mail.origin is None:
                self._event_done()
            return
        self.actor = None
        mail, left = self._unfinished(actor, mail)
        self._held.extendleft(reversed(left))
        self._report(mail, type, text, "the request was not finished; the actor is replaced", failure)
        self._dismiss(actor)
        self._plan_restart()

    def _dismiss(self, actor: Any) -> None:
        """End an actor. Its own `terminate` may be as broken as the rest of it; nothing else suffers from that."""
        try:
            self._terminate(actor)
        except Exception:
            logger.exception("an actor of %s could not be terminated", self.id)

    def _report(self, mail: Mail | None, type: str, text: str, remedy: str, failure: KeptError | None = None) -> None:
        self.exchange.counters["faults"] += 1
        request = mail.message if mail is not None else None
        data = ErrorData(
            500,
            text,
            remedy=remedy,
            requestType="" if request is None else request.type,
            capabilityId=self.id,
        )
        if mail is None or request is None:
            error = self.exchange.make("error", type, encode_data(data))
        else:
            error = self.exchange.error(request, type, data)
        self.exchange.report_fault(error, request, failure)
        if mail is None or mail.origin is None:
            if mail is not None:
                self._event_done()
            self.exchange.witness(error)
            again = mail is not None and mail.message.metadata.retry is not None
            if mail is None or not again or not self.exchange.try_again(mail, error):
                self.exchange.sink(error, request)
        else:
            self.exchange.turn_outcome((mail, error))

    def _plan_restart(self) -> None:
        now = self.exchange.clock.now_ms()
        while self._restarts and self._restarts[0] <= now - self.policy.window_ms:
            self._restarts.popleft()
        if len(self._restarts) >= self.policy.max_restarts:
            self.unhealthy = True
            logger.error(
                "%s is unhealthy: more than %d faults in %d ms",
                self.id,
                self.policy.max_restarts,
                self.policy.window_ms,
            )
            for mail in self._held:
                self._refuse(mail)
            self._held.clear()
            self._release_senders()
            return
        self._restart_timer = self.exchange.loop.schedule(self.policy.backoff_ms, self._turn_restart, None)

    def _turn_restart(self, _: Any) -> None:
        self._restart_timer = None
        self._restarts.append(self.exchange.clock.now_ms())
        self.exchange.counters["restarts"] += 1
        self.restarts += 1
        try:
            self.actor = self._spawn()
            self.attach()
        except Exception as error:
            self.actor = None
            self._report(
                None,
                faults.ACTOR_CRASH,
                f"the actor cannot be spawned: {text_of(error)}",
                _IN_THE_LOG,
                error_keeping.keep(error),
            )
            self._plan_restart()
            return
        self.release()

    def _refuse(self, mail: Mail) -> None:
        if mail.origin is None:
            self._event_done()
            return
        text, remedy = faults.unhealthy(self.id)
        data = ErrorData(503, text, remedy=remedy, requestType=mail.message.type, capabilityId=self.id)
        error = self.exchange.error(mail.message, faults.UNHEALTHY, data)
        self.exchange.loop.post_system(self.exchange.turn_outcome, (mail, error))

    # --- what kinds of actors differ in --------------------------------------------------------------------------

    def _spawn(self) -> Any:
        raise NotImplementedError

    def _post(self, mail: Mail) -> None:
        raise NotImplementedError

    def _terminate(self, actor: Any) -> None:
        raise NotImplementedError

    def _unfinished(self, actor: Any, mail: Mail | None) -> tuple[Mail | None, list[Mail]]:
        """The mail that failed, and what lay behind it."""
        raise NotImplementedError


class HandlerSlot(ActorSlot):
    """The slot of a declared capability: the kernel makes its actor, and sets the causation of its messages."""

    _crowded = CROWDED
    supervised: bool = False

    def __init__(self, plan: CapabilityPlan, kernel: Kernel) -> None:
        super().__init__(plan, kernel)
        if plan.capability.restart or kernel.restart:
            self.supervised = True
        self._retired: list[Any] = []  # actors that were replaced, and may still handle something

    def _spawn(self) -> Any:
        return self.lane(self.plan.capability.concurrency)

    def lane(self, limit: int, whole: Mailbox | None = None) -> HandlerActor:
        """A mailbox of this capability whose functions handle up to so many messages at a time."""
        fenced = self.durable and self.exchange.durable is not None and self.exchange.durable.is_shared
        return (FencedActor if fenced else HandlerActor)(self, limit, whole)

    def withdrawn(self, mail: Mail) -> None:
        """Another node has the command that this mail brought: its outcome is the answer."""
        self._release_senders()

    def lane_of(self, contract: Contract) -> Any:
        """The mailbox in which messages for this contract wait."""
        return self.actor

    def accept(self, mail: Mail) -> None:
        actor = self.actor
        if actor is None or self._held or not mail.stored:
            self._hold(mail)
        else:
            actor.put(mail)
            if actor.waiting > self._crowded:
                actor.drop_unwanted()
                self._crowded = max(CROWDED, 2 * actor.waiting)

    def _post(self, mail: Mail) -> None:
        self.actor.put(mail)

    def stop(self) -> None:
        super().stop()
        for actor in self._retired:
            actor.end()

    def _terminate(self, actor: Any) -> None:
        if actor.retired and not self.exchange.closing:
            self._retired = [each for each in self._retired if each.handling]
            self._retired.append(actor)
        else:
            actor.end()

    def _unfinished(self, actor: Mailbox, mail: Mail | None) -> tuple[Mail | None, list[Mail]]:
        return mail, actor.take_all()

    def port(self, actor: HandlerActor) -> LocalPort:
        return LocalPort(self, actor)

    def finished(self, mail: Mail, raw: Any) -> None:
        """A handler returned. Its reply takes a turn like every other message."""
        exchange = self.exchange
        if self._held_senders:
            self._release_senders()
        if mail.origin is None:
            exchange.event_done()
            return
        cause = mail.message.metadata
        metadata = Metadata(exchange.ids(), exchange.wall_ms(), cause.correlation, cause.id)
        reply = Message("reply", mail.message.type, raw, metadata)
        exchange.loop.offer(exchange.turn_outcome, (mail, reply))

    def refused(self, mail: Mail, refusal: Fail) -> None:
        """A handler refused a request. That is an answer, not a fault."""
        self._release_senders()
        if mail.origin is None:
            self._event_done()
            return
        error = self.exchange.error(mail.message, mail.message.type, faults.data_of(refusal))
        self.exchange.loop.offer(self.exchange.turn_outcome, (mail, error))

    def failed(self, actor: Any, mail: Mail | None, error: BaseException) -> None:
        """A handler raised, or returned what its contract forbids."""
        handling = "nothing" if mail is None else f"{mail.message.kind} {mail.message.type} {mail.message.id}"
        logger.error("%s failed while handling %s", self.id, handling, exc_info=error)
        type, text, failure = faults.ACTOR_CRASH, text_of(error), error_keeping.keep(error)
        if isinstance(error, BadOutput):
            type, text = faults.ACTOR_FAULT, f"invalid output: {error.message}"
        if self.supervised and actor is self.actor and not actor.retired:
            actor.retire()
            self.fault(actor, mail, type, text, failure)
        else:
            self.exchange.loop.post_system(self._turn_failed, (mail, type, text, failure))

    def _turn_failed(self, failed: tuple[Mail | None, str, str, KeptError]) -> None:
        mail, type, text, failure = failed
        self._report(mail, type, text, _IN_THE_LOG, failure)

    async def store_blob(self, blob: Blob) -> BlobPointer:
        return await self.kernel.blobs.store(blob)


class LanedSlot(HandlerSlot):
    """The slot of a capability some of whose handlers have a limit or a key of their own."""

    def _spawn(self) -> Any:
        return LanedActor(self)

    def lane_of(self, contract: Contract) -> Any:
        return None if self.actor is None else self.actor.lane_of(contract)

    def finished(self, mail: Mail, raw: Any) -> None:
        super().finished(mail, raw)
        self._next_of_key(mail)

    def refused(self, mail: Mail, refusal: Fail) -> None:
        super().refused(mail, refusal)
        self._next_of_key(mail)

    def withdrawn(self, mail: Mail) -> None:
        super().withdrawn(mail)
        self._next_of_key(mail)

    def failed(self, actor: Any, mail: Mail | None, error: BaseException) -> None:
        super().failed(actor, mail, error)
        if mail is not None:
            self._next_of_key(mail)

    def _next_of_key(self, mail: Mail) -> None:
        if mail.contract.key is not None and self.actor is not None:
            self.actor.done(mail)


class LocalPort:
    """A handler's way to the kernel, for actors on the kernel's own loop."""

    def __init__(self, slot: HandlerSlot, actor: HandlerActor) -> None:
        self._slot = slot
        self._exchange = slot.exchange
        self._actor = actor
        self._here = threading.get_ident()

    def emit(self, cause: Message, type: str, raw: msgspec.Raw) -> None:
        """Also from a thread that a handler has its slow work done in."""
        if self._actor.alive:
            event = self._exchange.caused(cause, "event", type, raw)
            loop = self._exchange.loop
            post = loop.post if threading.get_ident() == self._here else loop.complete
            post(self._exchange.turn_event, (event, None))

    def request(
        self,
        cause: Message,
        kind: str,
        type: str,
        raw: msgspec.Raw,
        timeout_ms: float | None,
        retry: Retry | None = None,
    ) -> Awaitable[Message]:
        router = self._exchange.router
        route = (router.commands if kind == "command" else router.queries).get(type)
        asks_itself = False
        if route is not None and route[1] is self._slot:
            asks_itself = self._slot.lane_of(route[0]) is self._actor
            self._refuse_to_wait_for_itself(cause, route[0], raw, asks_itself)
        answer = self._slot.kernel.exchange_request(self._exchange.caused(cause, kind, type, raw, timeout_ms, retry))
        if asks_itself:
            self._actor.asking += 1
            answer.add_done_callback(self._actor.answered)
        return answer

    def _refuse_to_wait_for_itself(
        self, cause: Message, contract: Contract, raw: msgspec.Raw, asks_itself: bool
    ) -> None:
        """While it waits a function leaves its place to another; that has an end, and where order is kept no place."""
        actor, whole, why = self._actor, self._slot.actor, ""
        if asks_itself and actor.limit == 1:
            why = "takes one message at a time and is busy asking"
        elif asks_itself and actor.asking >= actor.limit:
            why = f"waits for itself {actor.asking} times already"
        elif isinstance(whole, LanedActor) and whole.is_behind(cause, contract, raw):
            why = "handles messages of that key one at a time and is busy asking"
        if why:
            raise WaitsForItself(
                f"a handler of {self._slot.id} asked {contract.type}, which {self._slot.id} handles too, and it {why}",
                remedy="call the function directly, or use ctx.after to send it without waiting",
            )

    def after(
        self,
        cause: Message,
        delay_ms: float,
        kind: str,
        type: str,
        raw: msgspec.Raw,
        retry: Retry | None = None,
        *,
        id: str | None = None,
    ) -> str:
        message = self._exchange.caused(cause, kind, type, raw, retry=retry)
        return self._slot.kernel.timers.schedule(delay_ms, message, cause.metadata, id=id)

    def sleep(self, ms: float) -> Awaitable[None]:
        return pause(self._exchange.loop, ms)

    async def publish(self, cause: Message, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        kernel, durable = self._slot.kernel, self._exchange.durable
        if kernel.publisher is None:
            raise NotConfigured("this kernel has no bus to publish to", remedy="run the app with `mainspring serve`")
        parent = cause.metadata
        headers = {**causation_headers(parent.id, parent.correlation), **(options.get("headers") or {})}
        if parent.traceparent is not None and tracing.here() is None:
            headers.setdefault(TRACEPARENT, parent.traceparent)
            if parent.tracestate is not None:
                headers.setdefault(TRACESTATE, parent.tracestate)
        options = {**options, "headers": headers}
        if durable is not None and durable.is_open(cause):
            options.setdefault("id", durable.event_id(cause))
            prepared = None if kernel.preparer is None else kernel.preparer(topic, payload, options)
            if prepared is not None:
                durable.publish_with_outcome(cause, prepared[0])
                return prepared[1]
        return await kernel.publisher(topic, payload, **options)
