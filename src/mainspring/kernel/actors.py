"""Actors: one message at a time, in order, never on the loop's own turn.

`BufferedActor` is the Worker-shaped actor a low-level capability can spawn: a mailbox, a handler, `message` events for
what it sends and `error` events for what goes wrong. `HandlerActor` runs the functions of a declared capability. Both
keep a task of their own; posting only queues. Once terminated an actor is dead: its running handler is cancelled, and
whatever it still sends is ignored.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mainspring.kernel.blobs import Blob
from mainspring.kernel.context import Context
from mainspring.kernel.errors import Fail, encodable, temporary_refusal, text_of
from mainspring.kernel.exchange import begin_span
from mainspring.kernel.mail import Mail
from mainspring.loop import identifies_work
from mainspring.message import Message
from mainspring.telemetry import handling, tracing

if TYPE_CHECKING:
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

    def _fire(self, event: MessageEvent | ErrorEvent) -> None:
        for callback in tuple(self._listeners.get(event.type, ())):
            callback(event)
        last = self.onmessage if event.type == "message" else self.onerror
        if last is not None:
            last(event)


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
                self._fire(MessageEvent(output))
        except BaseException as error:
            if not self.alive:
                raise
            self._fire(ErrorEvent(error, text_of(error)))

    def _fire(self, event: MessageEvent | ErrorEvent) -> None:
        if self.alive:
            super()._fire(event)


class HandlerActor(Mailbox):
    """Runs the functions of a declared capability. An exception ends it; its slot decides what comes next."""

    def __init__(self, slot: HandlerSlot) -> None:
        super().__init__()
        self._slot = slot
        self._port = slot.port(self)

    @identifies_work(lambda known: (known["item"].message.kind, known["item"].message.type), unit="item")
    async def _serve(self) -> None:
        """One long-lived coroutine for all mail: a coroutine per mail would cost more than most handlers."""
        mail, slot, handled = self._mail, self._slot, 0
        loop = asyncio.get_running_loop()
        try:
            while self.alive:
                if not mail:
                    handled = 0
                    self._wake = loop.create_future()
                    await self._wake
                    continue
                item: Mail = mail.popleft()
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
                    if not self.alive:
                        raise
                    if (refusal := temporary_refusal(error)) is not None:
                        slot.refused(item, refusal)
                    else:
                        self.alive = False  # the rest of the mail waits for the next actor
                        if item.doing is not None:
                            item.doing.end(error)
                        slot.broke(self, item, error)
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
        kept = [mail for mail in self._mail if mail.origin is None or not mail.closed or mail.unrecorded]
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
