"""The process of one actor: `python -m mainspring.kernel.processes.child FD`.

It has a loop of its own, imports the program, and handles one mail after the other. When the node is gone it ends at
once, whatever it is doing: on Linux the kernel of the machine sees to that, elsewhere the closed socket does.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import itertools
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec

from mainspring.errors import Fail
from mainspring.kernel.actors import error_event_text, listen
from mainspring.kernel.blobs import Blob, BlobStore, allow_folder
from mainspring.kernel.capability import Capability
from mainspring.kernel.context import Context
from mainspring.kernel.contracts import CapabilityPlan, Contract
from mainspring.kernel.errors import BadOutput, data_of, text_of
from mainspring.kernel.processes.frames import Job, ProcessFrame, next_frame, packed
from mainspring.kernel.processes.locate import find_handler, find_spawn, names_of
from mainspring.loop import HandlerThreads, Loop, MonotonicClock, pause, resolve
from mainspring.message import Message, Metadata, NotEncodable, Retry, counted_ids, encode_data, parse
from mainspring.telemetry import error_keeping, handling, trace_headers, tracing, write_lines

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class PipePort:
    """A handler's way to the kernel, from another process."""

    def __init__(self, writer: asyncio.StreamWriter, loop: Loop) -> None:
        self._writer = writer
        self._loop = loop
        self._asks = itertools.count(1)
        self._ids = counted_ids()
        self._waiting: dict[int, asyncio.Future[ProcessFrame]] = {}

    def send(self, frame: ProcessFrame) -> None:
        self._writer.write(packed(frame))

    def answered(self, frame: ProcessFrame) -> None:
        waiter = self._waiting.pop(frame.ask, None)
        if waiter is not None:
            resolve(waiter, frame)

    def emit(self, cause: Message, type: str, raw: msgspec.Raw) -> None:
        self.send(ProcessFrame("emit", type=type, raw=bytes(raw)))

    async def request(
        self,
        cause: Message,
        kind: str,
        type: str,
        raw: msgspec.Raw,
        timeout_ms: float | None,
        retry: Retry | None = None,
    ) -> Message:
        frame = ProcessFrame("ask", kind=kind, type=type, raw=bytes(raw), amount=timeout_ms, retry=retry)
        answer = await self._ask(frame)
        metadata = Metadata(self._ids(), self._loop.clock.wall_ms(), cause.metadata.correlation, cause.id)
        return Message(answer.kind, answer.type or type, msgspec.Raw(answer.raw), metadata)  # type: ignore[arg-type]

    def after(
        self, cause: Message, delay_ms: float, kind: str, type: str, raw: msgspec.Raw, retry: Retry | None = None
    ) -> str:
        id = self._ids()
        self.send(ProcessFrame("after", kind=kind, type=type, raw=bytes(raw), text=id, amount=delay_ms, retry=retry))
        return id

    def sleep(self, ms: float) -> Awaitable[None]:
        return pause(self._loop, ms)

    async def publish(self, cause: Message, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        answer = await self._ask(ProcessFrame("publish", type=topic, raw=bytes(encode_data([payload, options]))))
        given = msgspec.json.decode(answer.raw)
        if answer.kind == "error":
            raise Fail(given["code"], given["message"])
        return given

    def _ask(self, frame: ProcessFrame) -> asyncio.Future[ProcessFrame]:
        frame.ask = next(self._asks)
        waiter: asyncio.Future[ProcessFrame] = asyncio.get_running_loop().create_future()
        self._waiting[frame.ask] = waiter
        self.send(frame)
        return waiter


class HandlerHost:
    """Runs the functions of a declared capability."""

    def __init__(self, job: Job, port: PipePort, clock: MonotonicClock) -> None:
        handlers = [find_handler(names_of(location), location, kind, type) for kind, type, location in job.handlers]
        plan = CapabilityPlan(Capability(id=job.capability, handlers=handlers), HandlerThreads(1))
        self._contracts: dict[tuple[str, str], list[Contract]] = {}
        for contract in [*plan.contracts, *(each for some in plan.listeners.values() for each in some)]:
            self._contracts.setdefault((contract.kind, contract.type), []).append(contract)
        self._blobs = BlobStore(Path(job.blob_folder), counted_ids()) if job.blob_folder else None
        if job.blob_folder:
            allow_folder(Path(job.blob_folder))
        self._port = port
        self._clock = clock

    async def take(self, frame: ProcessFrame) -> None:
        message = parse(frame.raw)
        handling.set((message.metadata.id, message.metadata.correlation))
        answer = ProcessFrame("reply", frame.number, raw=b"null")
        contract = self._contracts[message.kind, message.type][frame.ask]
        try:
            if tracing.recorder is None:
                await self._run(contract, message, answer)
            else:
                sent = trace_headers(message.metadata.traceparent, message.metadata.tracestate)
                with tracing.recorder.incoming(sent):
                    await self._run(contract, message, answer)
        except Fail as refusal:
            answer.op, answer.raw = "refused", bytes(encode_data(data_of(refusal)))
        except BadOutput as error:
            answer.op, answer.text = "fault", error.message
        except BaseException as error:
            logger.error("%s %s %s failed", message.kind, message.type, message.id, exc_info=error)
            answer.op, answer.text = "crash", text_of(error)
            answer.raw = msgspec.json.encode(error_keeping.keep(error))
        self._port.send(answer)

    async def _run(self, contract: Contract, message: Message, answer: ProcessFrame) -> None:
        assert contract.function is not None
        result = contract.function(contract.input.decode(message.raw), Context(self._port, message))
        if inspect.isawaitable(result):
            result = await result
        if contract.kind == "event":
            return
        if isinstance(result, Blob):
            if self._blobs is None:
                raise BadOutput("there is no data directory for blobs")
            answer.amount = float(self._clock.wall_ms() + result.ttl_ms)
            result = self._blobs.store(result, self._clock.wall_ms())
        answer.raw = bytes(contract.output.encode(result))


class WorkerHost:
    """Holds the Worker of a low-level capability."""

    def __init__(self, job: Job, port: PipePort) -> None:
        assert job.spawn is not None
        self._port = port
        self._actor = find_spawn(names_of(job.spawn), job.spawn, job.capability)()
        listen(self._actor, self._on_message, self._on_error)

    async def take(self, frame: ProcessFrame) -> None:
        self._actor.post_message(parse(frame.raw))

    def _on_message(self, event: Any) -> None:
        try:
            raw = bytes(encode_data(event.data))
        except NotEncodable:
            raw = b"null"  # no message at all, which is what the node will call it
        self._port.send(ProcessFrame("said", raw=raw))

    def _on_error(self, event: Any) -> None:
        self._port.send(ProcessFrame("error", text=error_event_text(event)))


async def _main(descriptor: int) -> None:
    node = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_unix_connection(sock=node, limit=1 << 20)
    start = await next_frame(reader)
    if start is None:
        return
    job = msgspec.json.decode(start.text, type=Job)
    clock = MonotonicClock()
    loop = Loop(clock)
    loop.attach()
    port = PipePort(writer, loop)
    try:
        write_lines(*job.logs)
        _limit(job)
        sys.path[:] = job.path
        host = HandlerHost(job, port, clock) if job.handlers else WorkerHost(job, port)
        tracing.switch_on()
    except BaseException as error:
        port.send(ProcessFrame("broken", text=text_of(error)))
        await writer.drain()
        return
    port.send(ProcessFrame("ready"))
    mail: asyncio.Queue[ProcessFrame] = asyncio.Queue()
    serving = asyncio.get_running_loop().create_task(_serve(host, mail))
    while (frame := await next_frame(reader)) is not None:
        if frame.op == "answer":
            port.answered(frame)
        else:
            mail.put_nowait(frame)
    serving.cancel()
    os._exit(0)  # the node is gone: nobody is left to finish for


async def _serve(host: HandlerHost | WorkerHost, mail: asyncio.Queue[ProcessFrame]) -> None:
    while True:
        await host.take(await mail.get())


def _limit(job: Job) -> None:
    """Die with the node, be the first to go when memory runs out, and keep to the limit that was set."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("500")
    if job.memory_mb is not None:
        resource.setrlimit(resource.RLIMIT_AS, (job.memory_mb << 20, job.memory_mb << 20))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the node, which ends its actors in order
    asyncio.run(_main(int(sys.argv[1])))
