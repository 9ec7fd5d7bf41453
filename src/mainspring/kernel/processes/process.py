"""Actors in processes of their own, seen from the node.

A blocked CPU, a leak or a crash over there leaves the node responsive; what the node sees is an actor that is silent
or gone. Everything else is as with any actor: one mail at a time, the same lineage, the same timeouts, the same
supervision. Terminating one kills its process, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.errors import Fail, fail_from
from mainspring.kernel.actors import ErrorEvent, EventListeners, HandlerActor, MessageEvent
from mainspring.kernel.capability import Capability
from mainspring.kernel.errors import BadOutput, RemoteError, data_of, temporary_refusal, text_of
from mainspring.kernel.mail import Mail
from mainspring.kernel.processes.frames import Job, ProcessFrame, next_frame, packed
from mainspring.kernel.processes.locate import check_findable, location_of
from mainspring.kernel.supervisor import HandlerSlot
from mainspring.kernel.workers import WorkerSlot
from mainspring.loop import BackgroundTasks, reject, resolve
from mainspring.message import Message, encode_data, encode_line
from mainspring.telemetry import KeptError, handling, lines_written

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel

logger: logging.Logger = logging.getLogger("mainspring.kernel")


class ProcessEnded(RemoteError):
    """The actor's process is gone, or could not begin."""


class RemoteCrash(RemoteError):
    """A handler raised in the actor's process; the text is that exception's."""

    def __init__(self, text: str, kept: KeptError) -> None:
        super().__init__(text)
        self.kept = kept


def job_for(capability: Capability, kernel: Kernel) -> Job:
    """What the process has to run. Raises `CapabilityError` when it would not find it."""
    check_findable(capability)
    folder = kernel.blobs.folder
    return Job(
        capability.id,
        [entry or "." for entry in sys.path],
        [(each.kind, each.type, location_of(each.function)) for each in capability.handlers],
        None if capability.spawn is None else location_of(capability.spawn),
        "" if folder is None else str(folder),
        capability.memory_mb,
        lines_written(),
    )


class Child:
    """One process and the conversation with it. `ready` resolves when it can take mail."""

    def __init__(self, job: Job, on_frame: Callable[[ProcessFrame], None], on_gone: Callable[[str], None]) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-m", "mainspring.kernel.processes.child", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        self.pid: int = self._process.pid
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._alive = True
        self.ended: bool = False  # nothing more can be sent to it
        self._writer: asyncio.StreamWriter | None = None
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Task[None] = loop.create_task(self._talk(ours, job))

    def send(self, frame: ProcessFrame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packed(frame))

    def kill(self) -> None:
        """End it now; `gone` completes when the operating system has let go of it."""
        self._alive = False
        self._process.kill()

    async def _talk(self, ours: socket.socket, job: Job) -> None:
        why = ""
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
            self.send(ProcessFrame("start", text=msgspec.json.encode(job).decode()))
            while (frame := await next_frame(reader)) is not None:
                if frame.op == "ready":
                    self.ready.set_result(None)
                elif frame.op == "broken":
                    why = frame.text
                elif self._alive:
                    self._on_frame(frame)
        finally:
            self.ended = True
            self._process.kill()
            code = await asyncio.shield(asyncio.to_thread(self._process.wait))
            if self._writer is not None:
                self._writer.close()
        text = why or f"its process ended {f'by signal {-code}' if code < 0 else f'with status {code}'}"
        # If nothing waits for it, the slot reports the process's end anyway.
        reject(self.ready, ProcessEnded(text), may_go_unseen=True)
        if self._alive:
            self._alive = False
            self._on_gone(text)


class ProcessActor(HandlerActor):
    """Runs a declared capability's functions in a process of its own."""

    def __init__(self, slot: ProcessSlot, job: Job) -> None:
        super().__init__(slot)
        self._process_slot = slot
        self._encoding = next((each.encoding for each in slot.plan.capability.handlers), None)
        self._numbers = itertools.count(1)
        self._number = 0
        self._beginning = False  # a mail waits for the process to begin, and will report if it never does
        self._handling: Message | None = None
        self._outcome: asyncio.Future[ProcessFrame] | None = None
        self.child: Child = Child(job, self._on_frame, self._on_gone)

    def end(self) -> None:
        super().end()
        self.child.kill()

    def _encoded(self, mail: Mail, result: Any) -> Any:
        return mail.contract.output.sealed(result)  # the process has checked it and made it JSON

    async def _call(self, mail: Mail) -> Any:
        self._beginning = True
        await self.child.ready
        self._beginning = False
        if self.child.ended:  # this mail was never begun: it is for the next actor
            self._mail.appendleft(mail)
            await self.child.gone
        self._number = next(self._numbers)
        message = self._handling = self._begun(mail)
        handling.set((message.metadata.id, message.metadata.correlation))
        self._outcome = asyncio.get_running_loop().create_future()
        self.child.send(ProcessFrame("mail", self._number, raw=encode_line(message), ask=self._which(mail)))
        frame = await self._outcome
        self._outcome = None
        if frame.op == "refused":
            raise fail_from(msgspec.json.decode(frame.raw), mail.message.type)
        if frame.op == "fault":
            raise BadOutput(frame.text)
        if frame.op == "crash":
            raise RemoteCrash(frame.text, msgspec.json.decode(frame.raw, type=KeptError))
        if frame.amount is not None:
            self._process_slot.kernel.blobs.plan(int(frame.amount))
        return msgspec.Raw(frame.raw)

    def _begun(self, mail: Mail) -> Message:
        """The message as the process gets it: what it leads to belongs below the span of its handling."""
        message, doing = mail.message, mail.doing
        if self._encoding is not None:
            message = msgspec.structs.replace(message, raw=mail.contract.input.opened(message.raw))
        if doing is None:
            return message
        metadata = msgspec.structs.replace(message.metadata, traceparent=doing.traceparent)
        return msgspec.structs.replace(message, metadata=metadata)

    def _which(self, mail: Mail) -> int:
        """Of several functions that listen to one event, the one that this mail is for."""
        listeners = self._process_slot.plan.listeners.get(mail.message.type, []) if mail.origin is None else []
        return listeners.index(mail.contract) if listeners else 0

    def _on_frame(self, frame: ProcessFrame) -> None:
        cause = self._handling
        if cause is None or not self.alive:
            return
        if frame.op in ("reply", "refused", "fault", "crash"):
            if self._outcome is not None and frame.number == self._number:
                resolve(self._outcome, frame)
        elif frame.op == "emit":
            self._port.emit(cause, frame.type, self._sent(frame))
        elif frame.op == "after":
            delay = frame.amount or 0.0
            self._port.after(cause, delay, frame.kind, frame.type, self._sent(frame), frame.retry, id=frame.text)
        else:
            self._process_slot.tasks.start(self._answer(frame, cause), frame.op)

    def _sent(self, frame: ProcessFrame) -> msgspec.Raw:
        """The data of a message that the process sends: the codec is used here, not there."""
        raw = msgspec.Raw(frame.raw)
        return raw if self._encoding is None else self._encoding.seal_data(frame.type, raw)

    async def _answer(self, frame: ProcessFrame, cause: Message) -> None:
        """Ask or publish for the actor, and send it the result."""
        answer = ProcessFrame("answer", ask=frame.ask, kind="reply")
        try:
            if frame.op == "publish":
                payload, options = msgspec.json.decode(frame.raw)
                published = await self._port.publish(cause, frame.type, payload, options)
                answer.raw = bytes(encode_data(published))
            else:
                sent = self._sent(frame)
                outcome = await self._port.request(cause, frame.kind, frame.type, sent, frame.amount, frame.retry)
                raw = bytes(outcome.raw) if self._encoding is None else self._encoding.open(outcome.raw)
                answer.kind, answer.type, answer.raw = outcome.kind, outcome.type, raw
        except Exception as error:
            failed = error if isinstance(error, Fail) else temporary_refusal(error) or Fail(500, text_of(error))
            answer.kind, answer.raw = "error", bytes(encode_data(data_of(failed)))
        self.child.send(answer)

    def _on_gone(self, text: str) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(ProcessEnded(text))
        elif self.alive and not self._beginning:
            self.alive = False
            self._process_slot.process_ended(self, text)


class _OwnsProcesses:
    """What both kinds of slots do about processes: wait for the first to begin, and for all to end."""

    actor: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._children: list[Child] = []
        self.tasks: BackgroundTasks = BackgroundTasks(logger, "actors in processes")

    async def ready(self) -> None:
        await asyncio.shield(self.actor.child.ready)

    async def ended(self) -> None:
        await self.tasks.cancel()
        await asyncio.gather(*(child.gone for child in self._children), return_exceptions=True)

    def _own(self, child: Child) -> None:
        self._children = [each for each in self._children if not each.gone.done()]
        self._children.append(child)


class ProcessSlot(_OwnsProcesses, HandlerSlot):
    """The slot of a declared capability with `isolation="process"`."""

    supervised = True

    def _terminate(self, actor: Any) -> None:
        actor.end()

    def _spawn(self) -> Any:
        actor = ProcessActor(self, job_for(self.plan.capability, self.kernel))
        self._own(actor.child)
        return actor

    def process_ended(self, actor: ProcessActor, text: str) -> None:
        self.failed(actor, None, ProcessEnded(text))


class ProcessWorker(EventListeners):
    """A Worker-shaped actor whose Worker is in another process."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._waiting: list[ProcessFrame] = []
        self.child: Child = Child(job, self._on_frame, self._on_gone)
        self.child.ready.add_done_callback(self._begin)

    def post_message(self, message: Message) -> None:
        frame = ProcessFrame("post", raw=encode_line(message))
        if self.child.ready.done():
            self.child.send(frame)
        else:
            self._waiting.append(frame)

    def terminate(self) -> None:
        self.child.kill()

    def _begin(self, ready: asyncio.Future[None]) -> None:
        for frame in self._waiting:
            self.child.send(frame)
        self._waiting.clear()

    def _on_frame(self, frame: ProcessFrame) -> None:
        if frame.op == "said":
            self.dispatch_event(MessageEvent(msgspec.json.decode(frame.raw)))
        elif frame.op == "error":
            self.dispatch_event(ErrorEvent(RemoteError(frame.text), frame.text))

    def _on_gone(self, text: str) -> None:
        self.dispatch_event(ErrorEvent(ProcessEnded(text), text))


class ProcessWorkerSlot(_OwnsProcesses, WorkerSlot):
    """The slot of a low-level capability with `isolation="process"`."""

    def _spawn(self) -> Any:
        actor = ProcessWorker(job_for(self.plan.capability, self.kernel))
        self._own(actor.child)
        return actor
