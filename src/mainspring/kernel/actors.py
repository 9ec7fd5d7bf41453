"""Actors: they take messages in order, and never on the loop's own turn.

`BufferedActor` is the Worker-shaped actor a low-level capability can spawn: a mailbox, a handler, `message` events for
what it sends and `error` events for what goes wrong; it takes one message at a time. `HandlerActor` runs the functions
of a declared capability, several messages at a time; `LanedActor` those that ask for a limit or an order of their own.
All keep tasks of their own; posting only queues. Once terminated an actor is dead: its running handlers are cancelled,
and whatever it still sends is ignored.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mainspring.errors import Fail
from mainspring.kernel.blobs import Blob
from mainspring.kernel.context import Context
from mainspring.kernel.errors import encodable, temporary_refusal, text_of
from mainspring.kernel.exchange import begin_span
from mainspring.kernel.mail import Mail
from mainspring.loop import identifies_work, wake
from mainspring.message import Message
from mainspring.telemetry import handling, tracing

if TYPE_CHECKING:
    import msgspec

    from mainspring.kernel.contracts import Contract
    from mainspring.kernel.durable.commands import DurableCommands
    from mainspring.kernel.supervisor import HandlerSlot

_TURNS_BEFORE_YIELD: Final = 64  # so that a full mailbox of quick handlers leaves room for everyone else


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """What listeners of `message` get: the actor's output is `data`."""

    data: Any
    type: str = "message"


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """What listeners of `error` get."""

    error: BaseException
    message: str
    type: str = "error"


Listener = Callable[[Any], Any]


class EventListeners:
    """The listeners of one Worker-shaped actor, by the type of the event."""

    def __init__(self) -> None:
        super().__init__()
        self.onmessage: Listener | None = None
        self.onerror: Listener | None = None
        self._listeners: dict[str, list[Listener]] = {}

    def add_event_listener(self, type: str, callback: Listener) -> None:
        self._listeners.setdefault(type, []).append(callback)

    def remove_event_listener(self, type: str, callback: Listener) -> None:
        if callback in self._listeners.get(type, ()):
            self._listeners[type].remove(callback)

    def dispatch_event(self, event: Any) -> bool:
        """Call the listeners of the event's `type`, then `onmessage` or `onerror`. Always True: nothing cancels."""
        for callback in tuple(self._listeners.get(event.type, ())):
            callback(event)
        last = {"message": self.onmessage, "error": self.onerror}.get(event.type)
        if last is not None:
            last(event)
        return True


def listen(actor: Any, on_message: Listener, on_error: Listener) -> None:
    """Have the output and the errors of a Worker-shaped actor called back."""
    if callable(getattr(actor, "add_event_listener", None)):
        actor.add_event_listener("message", on_message)
        actor.add_event_listener("error", on_error)
    else:
        actor.onmessage, actor.onerror = on_message, on_error


def error_event_text(event: Any) -> str:
    """The text of an `error` event, which an actor of somebody else may have made in its own way."""
    error = getattr(event, "error", None)
    return text_of(error) if isinstance(error, BaseException) else encodable(str(getattr(event, "message", "error")))


@types.coroutine
def _yield_to_others() -> Generator[None]:
    """Give every other task of the host loop its turn."""
    yield


class Actor(Protocol):
    """The shape of a Worker. `onmessage` and `onerror` may be left out by actors that take listeners."""

    def post_message(self, message: Any) -> None:
        """Queue a message; return before it is handled."""

    def terminate(self) -> None:
        """End now: drop the mail, send nothing more."""

    def add_event_listener(self, type: str, callback: Listener) -> None:
        """Call this for every `message` or `error` event, beside `onmessage` and `onerror`."""
        ...

    def remove_event_listener(self, type: str, callback: Listener) -> None:
        """Do not call this any more; one that was never added is ignored."""
        ...


class Mailbox:
    """A queue with one reader that runs as a task; it sleeps while the queue is empty."""

    def __init__(self) -> None:
        self.alive: bool = True
        self._mail: deque[Any] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def put(self, item: Any) -> None:
        """Queue an item; returns before it is handled."""
        self._mail.append(item)
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    @property
    def waiting(self) -> int:
        """Mail that no handler has begun with."""
        return len(self._mail)

    def take_all(self) -> list[Any]:
        """Mail that no handler has begun with, oldest first; the box is empty afterwards."""
        left = list(self._mail)
        self._mail.clear()
        return left

    def end(self) -> None:
        """End now: drop what waits, interrupt what is being handled. Idempotent."""
        self.alive = False
        self._mail.clear()
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            handled = 0
            while self.alive:
                if not self._mail:
                    handled = 0
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
                    continue
                await self._handle(self._mail.popleft())
                handled += 1
                if handled >= _TURNS_BEFORE_YIELD:
                    handled = 0
                    await _yield_to_others()
        except asyncio.CancelledError:
            if self.alive:
                raise

    async def _handle(self, item: Any) -> None:
        raise NotImplementedError


class BufferedActor(EventListeners, Mailbox):
    """A Worker-shaped actor around one function.

    `handler(message)` returns, or awaits to, the messages to send: an iterable, or None. Each becomes a `message`
    event, in order; an exception becomes an `error` event, and the next message is handled all the same.
    """

    def __init__(self, handler: Callable[[Any], Awaitable[Iterable[Any] | None] | Iterable[Any] | None]) -> None:
        super().__init__()
        self._handler = handler

    def post_message(self, message: Any) -> None:
        if self.alive:
            self.put(message)

    def terminate(self) -> None:
        self.end()

    async def _handle(self, item: Any) -> None:
        if isinstance(item, Message):
            handling.set((item.metadata.id, item.metadata.correlation))
        try:
            outputs = self._handler(item)
            if inspect.isawaitable(outputs):
                outputs = await outputs
            for output in outputs or ():
                self.dispatch_event(MessageEvent(output))
        except BaseException as error:
            if not self.alive:
                raise
            self.dispatch_event(ErrorEvent(error, text_of(error)))

    def dispatch_event(self, event: Any) -> bool:
        """Send an event as the actor's own: a `MessageEvent` is what it says, an `ErrorEvent` a fault of it."""
        return super().dispatch_event(event) if self.alive else True


class HandlerActor(Mailbox):
    """Runs the functions of a declared capability, up to `limit` messages at a time, begun in order.

    Workers share the mailbox. One of them takes all mail as long as functions return without waiting. When one waits,
    and mail lies behind it, the next worker takes over: waiting costs a task, and what does not wait costs none.
    """

    def __init__(self, slot: HandlerSlot, limit: int = 1, whole: Mailbox | None = None) -> None:
        super().__init__()
        self._slot = slot
        self._whole: Mailbox = whole or self  # the actor that the slot knows
        self._port = slot.port(self)
        self.limit = limit
        self.asking: int = 0  # functions that wait for an answer of this same mailbox; they do not count
        self._taking = True
        self._workers: set[asyncio.Task[None]] = set()
        self._context = copy_context()  # of workers: not that of whoever sent the message for which one was needed
        self._seen_to = limit == 1  # whether mail that is left lying will be seen; one worker always comes back to it

    def put(self, item: Any) -> None:
        self._mail.append(item)
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)
        elif not self._workers:
            self._start_worker()
        elif not self._seen_to:
            self._see_to_mail()

    def end(self) -> None:
        self._taking = False
        super().end()
        for worker in self._workers:
            worker.cancel()

    def retire(self) -> None:
        """Take no more mail; what is being handled may end."""
        self._taking = False
        if self._wake is not None:
            wake(self._wake)

    @property
    def retired(self) -> bool:
        return not self._taking

    @property
    def handling(self) -> bool:
        """Whether a function still runs, or may."""
        return bool(self._workers)

    def answered(self, _: Any) -> None:
        """A function has the answer for which it asked this same mailbox."""
        self.asking -= 1

    def _start_worker(self) -> None:
        worker = asyncio.get_running_loop().create_task(self._serve(), context=self._context.copy())
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    def _see_to_mail(self) -> None:
        """Look again when everybody who is about to take mail has done so."""
        self._seen_to = True
        asyncio.get_running_loop().call_soon(self._look_for_mail)

    def _look_for_mail(self) -> None:
        self._seen_to = False
        if self._mail and self._taking and len(self._workers) - self.asking < self.limit:
            self._start_worker()

    @identifies_work(lambda known: (known["item"].message.kind, known["item"].message.type), unit="item")
    async def _serve(self) -> None:
        """One long-lived coroutine for all mail: a coroutine per mail would cost more than most handlers."""
        mail, slot, handled = self._mail, self._slot, 0
        loop = asyncio.get_running_loop()
        try:
            while self._taking:
                if not mail:
                    if self._wake is not None:
                        return  # one that waits for mail is enough
                    handled = 0
                    self._wake = loop.create_future()
                    await self._wake
                    continue
                item: Mail = mail.popleft()
                if mail and not self._seen_to:
                    self._see_to_mail()
                if item.origin is None and tracing.recorder is not None:
                    item.doing = begin_span(tracing.recorder, item)
                entered = None if item.doing is None else item.doing.enter()
                try:
                    result = self._call(item)
                    if type(result) is types.CoroutineType or hasattr(result, "__await__"):
                        result = await result
                    if type(result) is Blob:
                        result = await slot.store_blob(result)
                    raw = None if item.origin is None else self._encoded(item, result)
                except Fail as fail:
                    if self.alive:
                        slot.refused(item, fail)
                except BaseException as error:
                    if not self.alive or _is_cancelled(error):
                        raise
                    if isinstance(error, TakenByOther):
                        slot.withdrawn(item)
                    elif (refusal := temporary_refusal(error)) is not None:
                        slot.refused(item, refusal)
                    else:
                        if item.doing is not None:
                            item.doing.end(error)
                        slot.failed(self._whole, item, error)
                else:
                    if self.alive:
                        slot.finished(item, raw)
                if item.doing is not None:
                    item.doing.leave(entered)
                    if item.origin is None:
                        item.doing.end()
                handled += 1
                if handled >= _TURNS_BEFORE_YIELD:
                    handled = 0
                    await _yield_to_others()
        except asyncio.CancelledError:
            if self.alive:
                raise

    def drop_unwanted(self) -> None:
        """Drop mail whose requester has gone or got its timeout, so that a stuck actor cannot fill the memory."""
        kept = wanted(self._mail)
        self._mail.clear()
        self._mail.extend(kept)

    def _call(self, mail: Mail) -> Any:
        """Begin to handle a mail: what its function returned, perhaps to be awaited."""
        function = mail.contract.function
        assert function is not None
        metadata = mail.message.metadata
        handling.set((metadata.id, metadata.correlation))
        return function(mail.value, Context(self._port, mail.message, mail.origin))

    def _encoded(self, mail: Mail, result: Any) -> Any:
        """The JSON text of what was returned; raises `BadOutput`."""
        return mail.contract.output.encode(result)


class TakenByOther(Exception):
    """Another node has the command."""


class FencedActor(HandlerActor):
    """Of a capability with durable commands on a shared log: they begin only while the node's lease is certain."""

    def _call(self, mail: Mail) -> Any:
        durable = self._slot.exchange.durable
        if durable is None or not mail.unrecorded or durable.is_certain():
            return super()._call(mail)
        return self._call_when_certain(mail, durable)

    async def _call_when_certain(self, mail: Mail, durable: DurableCommands) -> Any:
        if not await durable.may_begin(mail):
            raise TakenByOther
        result = super()._call(mail)
        return await result if inspect.isawaitable(result) else result


def wanted(mail: Iterable[Mail]) -> list[Mail]:
    """Mail that somebody waits for, or that must be done in any case."""
    return [each for each in mail if each.origin is None or not each.closed or each.unrecorded]


def _is_cancelled(error: BaseException) -> bool:
    """Whether the worker itself is to end; a function that raises CancelledError by itself has failed."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class LanedActor(Mailbox):
    """The actor of a capability some of whose handlers have a limit or a key of their own.

    Each handler with its own limit has a mailbox of its own; the others share one, and so do listeners that take one
    event at a time: an event reaches them one after the other, as they were declared. Of messages with the same key one
    is handled at a time, in order, whatever mailbox they are for; the others lie here until it is done.
    """

    def __init__(self, slot: HandlerSlot) -> None:
        super().__init__()
        plan = slot.plan
        self._shared = slot.lane(plan.capability.concurrency, self)
        in_order = slot.lane(1, self)
        contracts = (*plan.contracts, *(each for some in plan.listeners.values() for each in some))
        self._own = {
            id(each): in_order if (each.kind, each.concurrency) == ("event", 1) else slot.lane(each.concurrency, self)
            for each in contracts
            if each.concurrency
        }
        self._lanes = (self._shared, *dict.fromkeys(self._own.values()))
        self._handled: dict[Any, Mail] = {}  # by key: what is being handled, or is about to be
        self._behind: dict[Any, deque[Mail]] = {}  # by key: what waits for that
        self._slot = slot

    def lane_of(self, contract: Contract) -> HandlerActor:
        """The mailbox of a handler."""
        return self._own.get(id(contract), self._shared)

    def put(self, item: Mail) -> None:
        key_of = item.contract.key
        if key_of is not None:
            try:
                key = item.key = key_of(item.value)
                handled = self._handled.setdefault(key, item)
            except Exception as error:
                self._slot.failed(self, item, error)
                return
            if handled is not item:
                self._behind.setdefault(key, deque()).append(item)
                return
        self.lane_of(item.contract).put(item)

    def done(self, mail: Mail) -> None:
        """A mail with a key is done: the next one with that key may begin."""
        if self._handled.get(mail.key) is not mail:
            return
        behind = self._behind.get(mail.key)
        if not behind:
            del self._handled[mail.key]
            return
        item = self._handled[mail.key] = behind.popleft()
        if not behind:
            del self._behind[mail.key]
        self.lane_of(item.contract).put(item)

    def is_behind(self, cause: Message, contract: Contract, raw: msgspec.Raw) -> bool:
        """Whether this request would wait for the message whose handler sends it, because they have the same key."""
        if contract.key is None:
            return False
        try:
            handled = self._handled.get(contract.key(contract.input.decode(raw)))
        except Exception:  # it will be refused for that
            return False
        return handled is not None and handled.message is cause

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes) + sum(map(len, self._behind.values()))

    def take_all(self) -> list[Any]:
        left = [mail for lane in self._lanes for mail in lane.take_all()]
        left += [mail for behind in self._behind.values() for mail in behind]
        self._behind.clear()
        return left

    def drop_unwanted(self) -> None:
        for lane in self._lanes:
            lane.drop_unwanted()
        self._behind = {key: deque(kept) for key, behind in self._behind.items() if (kept := wanted(behind))}

    def end(self) -> None:
        super().end()
        for lane in self._lanes:
            lane.end()

    def retire(self) -> None:
        for lane in self._lanes:
            lane.retire()

    @property
    def retired(self) -> bool:
        return self._shared.retired

    @property
    def handling(self) -> bool:
        return any(lane.handling for lane in self._lanes)
