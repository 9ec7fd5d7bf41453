"""A loaded module: its operations as effects, its exports as programs.

Each operation of the effect table becomes an effect class of its own, so handlers, kinds, traces and journals work as
for any other effect. Each exported program becomes a generator: it calls into the module, yields the effect the module
asked for, and passes the answer back in. All runs of a guest share one instance; each has its own buffer in the guest's
memory, which the tasks that it spawns use, too; buffers are used again, the last one given back first.

Memory of the guest, with buffers of B bytes:

    0     arguments of an invocation
    B     the result of an export that performs no effects
    2B    the handle table, one u32 per operation
    then  one buffer of B bytes for each run, aligned to 8
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from types import new_class
from typing import Any, ClassVar, Final

import msgspec

from mainspring.guests.voyd import frames
from mainspring.guests.voyd.adapters import default_handler
from mainspring.guests.voyd.errors import GuestProtocolError, GuestRefused, GuestTrap
from mainspring.guests.voyd.machine import Machine, Ref, to_binary
from mainspring.guests.voyd.module import (
    EFFECT_TABLE,
    GuestOperation,
    custom_sections,
    export_id,
    exported_names,
    parse_table,
)
from mainspring.guests.voyd.schema import Schema, SchemaReader
from mainspring.guests.voyd.tasks import IMPORTS as TASK_IMPORTS
from mainspring.guests.voyd.tasks import TASK_EFFECT, GuestTask, TaskTable, task_import
from mainspring.runs import Effect, Runtime

EXPORT_ABI: Final = "voyd.export_abi"
EFFECT_ABI: Final = "voyd.effect_abi"
TRANSPORT: Final = ("voyd.std.msgpack", 1)
_NUMBERS: Final = {"version": 2, "hostAbi": 2, "dtoSchemaAbi": 1}
_REQUIRED: Final = ("init_effects", "effect_status", "effect_len", "effect_cont", "resume_effectful")
_VALUE, _EFFECT = 0, 1
_PLAIN: Final = ("bool", "i32", "i64", "f32", "f64")
_KIND_NUMBERS: Final = {"resume": 0, "tail": 1}
_EXPORT_COMPLETION, _CALLBACK_COMPLETION = 0, 1

DEFAULT_BUFFER_BYTES: Final = 131_072  # what the protocol's own host uses
DEFAULT_MEMORY_BYTES: Final = 64 << 20
DEFAULT_FUEL: Final = 100_000_000  # instructions per step: a guest that never suspends holds the thread for some 50 ms

Key = tuple[str, int, int]  # effect id, operation, signature


class GuestEffect(Effect[Any]):
    """An operation performed by a guest. `args` are its arguments; the class knows its `operation`."""

    args: list[Any]
    operation: ClassVar[GuestOperation]


class GuestExport(msgspec.Struct):
    """An exported program: its id on the wire, and the types of its parameters and its result."""

    name: str
    id: int
    parameters: list[Schema]
    result: Schema
    abi: str = ""  # "direct": its numbers are passed as they are
    wrapper: str = ""  # the function to call, where that has another name


class VoydGuest:
    """Made by `load_wasm`. `handle` its operations, then start its entries."""

    def __init__(
        self,
        source: bytes,
        register: Callable[..., None],
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        max_memory_bytes: int = DEFAULT_MEMORY_BYTES,
        fuel_per_step: int = DEFAULT_FUEL,
    ) -> None:
        module = to_binary(source)
        sections = custom_sections(module)
        if EFFECT_TABLE not in sections:
            raise GuestRefused(
                f"the module has no section {EFFECT_TABLE}", remedy="compile it for the Voyd host protocol"
            )
        self.operations: list[GuestOperation] = parse_table(sections[EFFECT_TABLE])
        self.exports: dict[str, GuestExport] = _read_exports(sections.get(EXPORT_ABI))
        self._signatures = _read_effects(sections.get(EFFECT_ABI), len(self.operations))
        _check_module(module)
        self._register = register
        self._buffer_bytes = buffer_bytes
        self._machine = Machine(
            module, max_memory_bytes=max_memory_bytes, fuel_per_call=fuel_per_step, offer=self._offered
        )
        self._free: list[int] = []
        self._effects = [_effect_class(operation) for operation in self.operations]
        self._by_key: dict[Key, type[GuestEffect]] = {
            (operation.effect, operation.op, operation.signature): effect
            for operation, effect in zip(self.operations, self._effects, strict=True)
        }
        self._next_buffer = self._write_handle_table()

    def _offered(self, module: str, name: str) -> Callable[..., int | Ref] | None:
        """What the host provides of a module's imports."""
        return task_import(name, lambda: self._machine.caller) if module == TASK_IMPORTS else None

    def _write_handle_table(self) -> int:
        start, count = 2 * self._buffer_bytes, len(self.operations)
        try:
            self._machine.require(start + 4 * count)
            self._machine.memory.write(start, struct.pack(f"<{count}I", *range(count)))
            self._machine.call("init_effects", start, result=False)
        except (GuestProtocolError, GuestTrap) as error:
            raise GuestRefused(f"the module cannot be initialised: {error.message}", remedy=error.remedy) from None
        return (start + 4 * count + 7) // 8 * 8

    # -- what a host says to it

    def handle(
        self, effect: str, op: int, signature: int, handler: Callable[..., Any], *, strict: bool = False
    ) -> None:
        """Answer one operation; an operation the module does not have is an error here, not when it would run."""
        known = self._by_key.get((effect, op, signature & 0xFFFFFFFF))
        if known is None:
            raise GuestRefused(
                f"the module has no operation {op} of {effect} with signature 0x{signature & 0xFFFFFFFF:08x}",
                remedy="guest.operations lists what it has",
            )
        self._register(known, handler, strict=strict)

    def handle_named(self, name: str, handler: Callable[..., Any], *, strict: bool = False) -> None:
        """Answer the operation of this name: its whole label (`app::Log::write`), or the end of it (`Log::write`)."""
        found = [each for each in self.operations if each.label == name or each.label.endswith(f"::{name}")]
        if len(found) != 1:
            labels = ", ".join(each.label for each in (found or self.operations))
            text = f"several operations of the module end in {name}" if found else f"the module has no operation {name}"
            raise GuestRefused(text, remedy=f"give one of: {labels}")
        self._register(self._effects[found[0].index], handler, strict=strict)

    def handle_defaults(self, source: random.Random) -> None:
        """Answer what the standard library asks for: time, random numbers of `source`, log lines."""
        for operation, effect in zip(self.operations, self._effects, strict=True):
            signature = self._signatures.get(operation.index)
            result = None if signature is None else signature[1]
            handler = default_handler(operation, result, source, self._buffer_bytes)
            if handler is not None:
                self._register(effect, handler)

    def effect_class(self, effect: str, op: int, signature: int) -> type[GuestEffect]:
        """The effect class of an operation, for `runtime.handle`."""
        return self._by_key[effect, op, signature & 0xFFFFFFFF]

    def entry(self, name: str = "main") -> GuestEntry:
        """An exported program, to be started like any other. One that does not exist fails when it runs."""
        return GuestEntry(self, name)

    @property
    def memory_bytes(self) -> int:
        """How much memory the guest has now."""
        return self._machine.memory.size()

    # -- a run

    def run(self, name: str, args: tuple[Any, ...], perform: Any) -> Generator[Any, Any, Any]:
        """The program of one run; used by `GuestEntry`."""
        export = self.exports.get(name)
        if export is None:
            raise GuestProtocolError(f"missing export {name}: the module has {', '.join(self.exports) or 'none'}")
        if not self._machine.has(f"{name}_effectful"):
            return self._run_pure(export, args)
        task = GuestTask(TaskTable(self._machine, self._run_task, self._take_buffer(), self._free.append), perform)
        buffer = task.table.buffer
        try:
            frame = self._invocation(export, args)
            result = task.call(f"{name}_effectful", 0, len(frame), buffer, self._buffer_bytes)
            while (request := self._requested(result, buffer)) is not None:
                continuation = task.call("effect_cont", result)
                task.drop(result)
                length = yield from self._performed(task, request)
                arguments = (buffer, length, self._buffer_bytes, _EXPORT_COMPLETION, export.id)
                result = task.call("resume_effectful", continuation, *arguments)
                task.drop(continuation)
            length = self._machine.call("effect_len", result)
            return frames.completion(frames.decode(self._machine.memory.read(buffer, length)), export.id, export.result)
        finally:
            task.finish()

    def _run_task(self, task: GuestTask, outcome: Ref, number: int) -> Generator[Any, Any, Ref]:
        """The rest of a spawned task, from its first outcome to its last one, which holds its value."""
        buffer = task.table.buffer
        while (tag := self._machine.call("__voyd_outcome_tag", outcome)) == _EFFECT:
            result = task.call("handle_outcome", outcome, buffer, self._buffer_bytes, _CALLBACK_COMPLETION, number)
            task.drop(outcome)
            request = self._requested(result, buffer)
            if request is None:
                raise GuestProtocolError("a task of the guest says that it performs an effect, and does not")
            continuation = task.call("effect_cont", result)
            task.drop(result)
            length = yield from self._performed(task, request)
            outcome = task.call("resume_effectful_raw", continuation, buffer, length)
            task.drop(continuation)
        if tag != _VALUE:
            raise GuestProtocolError(f"a task of the guest ended with the unknown tag {tag}")
        return outcome

    def _performed(self, task: GuestTask, request: frames.Request) -> Generator[Any, Any, int]:
        """Have an effect performed, and put its answer into the buffer; the answer's length."""
        known = self.operations[request.index]
        if known.effect == TASK_EFFECT:
            answer = yield from task.answer(known.op, [value for _, value in request.args])
        else:
            answer = yield self._effect(request)
        frame = self._answer(request, answer)
        self._machine.memory.write(task.table.buffer, frame)
        return len(frame)

    def _invocation(self, export: GuestExport, args: tuple[Any, ...]) -> bytes:
        """Put the arguments where an export finds them."""
        frame = frames.invocation(export.id, export.parameters, args)
        self._fits(frame)
        self._machine.memory.write(0, frame)
        return frame

    def _run_pure(self, export: GuestExport, args: tuple[Any, ...]) -> Any:
        """An export that performs no effects, in one step."""
        name, kinds = export.wrapper or export.name, [schema.kind for schema in export.parameters]
        if not self._machine.has(name):
            raise GuestProtocolError(f"the module declares the export {export.name} and has no function {name}")
        if export.abi != "direct":
            frame = self._invocation(export, args)
            length = self._machine.call(name, 0, len(frame), self._buffer_bytes, self._buffer_bytes)
            self._check_length(length)
            text = self._machine.memory.read(self._buffer_bytes, length)
            return frames.completion(frames.decode(text), export.id, export.result)
        if not (all(kind in _PLAIN for kind in kinds) and export.result.kind in (*_PLAIN, "void")):
            raise GuestProtocolError(
                f"{name} takes or gives values that are not numbers, and does not serialize them",
                remedy="compile it with the abi `serialized`, or export a function of numbers",
            )
        for index, (schema, value) in enumerate(zip(export.parameters, args, strict=True)):
            schema.to_wire(value, f"argument {index}")
        result = self._machine.call_direct(name, kinds, args, result=export.result.kind != "void")
        return bool(result) if export.result.kind == "bool" else result

    def _requested(self, result: Ref, buffer: int) -> frames.Request | None:
        """The effect the guest asks for; None when it completed."""
        status, length = self._machine.call("effect_status", result), self._machine.call("effect_len", result)
        if status not in (_VALUE, _EFFECT):
            raise GuestProtocolError(f"the guest reported the unknown status {status}")
        self._check_length(length)
        if status == _VALUE:
            return None
        return self._checked(frames.request(frames.decode(self._machine.memory.read(buffer, length))))

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self._buffer_bytes:
            raise GuestProtocolError(
                f"the guest reported a message of {length} bytes for a buffer of {self._buffer_bytes}",
                remedy="load it with a larger buffer_bytes",
            )

    def _checked(self, request: frames.Request) -> frames.Request:
        """A request must be what the table says about its operation."""
        if not 0 <= request.index < len(self.operations):
            raise GuestProtocolError(f"the guest asked for operation {request.index}, which is not in its table")
        known = self.operations[request.index]
        same = (known.op, known.signature, _KIND_NUMBERS[known.kind]) == (request.op, request.signature, request.kind)
        if not same or request.effect not in (known.effect, known.effect_hash):
            raise GuestProtocolError(f"the guest asked for {known.label} in a way that its table does not describe")
        return request

    def _effect(self, request: frames.Request) -> GuestEffect:
        signature = self._signatures.get(request.index)
        if signature is None:
            args = [value for _, value in request.args]
        elif len(signature[0]) != len(request.args):
            raise GuestProtocolError(
                f"{self.operations[request.index].label} was asked with {len(request.args)} arguments"
            )
        else:
            pairs = zip(signature[0], request.args, strict=True)
            args = [schema.from_wire(value, f"argument {i}") for i, (schema, (_, value)) in enumerate(pairs)]
        return self._effects[request.index](args)

    def _answer(self, request: frames.Request, answer: Any) -> bytes:
        signature, known = self._signatures.get(request.index), self.operations[request.index]
        try:
            wire = answer if signature is None else signature[1].to_wire(answer, "answer")
            frame = frames.outcome(request.index, request.result_fingerprint, wire)
        except (GuestProtocolError, TypeError, ValueError, OverflowError) as error:
            text = error.message if isinstance(error, GuestProtocolError) else str(error)
            raise GuestProtocolError(
                f"{text} (answering {known.label}, effect {known.effect}, op {known.op}, {known.kind}, before resuming)"
            ) from None
        self._fits(frame)
        return frame

    def _fits(self, frame: bytes) -> None:
        if len(frame) > self._buffer_bytes:
            raise GuestProtocolError(
                f"a message of {len(frame)} bytes does not fit the buffer of {self._buffer_bytes}",
                remedy="load the guest with a larger buffer_bytes",
            )

    def _take_buffer(self) -> int:
        if self._free:
            return self._free.pop()
        start = self._next_buffer
        self._machine.require(start + self._buffer_bytes)
        self._next_buffer = (start + self._buffer_bytes + 7) // 8 * 8
        return start


def load_wasm(
    runtime: Runtime, source: str | os.PathLike[str] | bytes, *, defaults: bool = True, **limits: int
) -> VoydGuest:
    """Load a guest for a runtime from a .wasm or .wat file, or from its bytes; GuestRefused when it does not fit.

    `buffer_bytes` bounds one message, `max_memory_bytes` the guest's memory, `fuel_per_step` the instructions between
    two suspensions. With `defaults` the standard library's time, random numbers and log lines have handlers.
    """
    if not isinstance(source, bytes):
        source = Path(source).read_bytes()
    guest = VoydGuest(source, runtime.handle, **limits)
    if defaults:
        guest.handle_defaults(runtime.random)
    return guest


class GuestEntry:
    """One program of a guest: start it with `runtime.start(entry, *args)`."""

    def __init__(self, guest: VoydGuest, name: str) -> None:
        self.guest = guest
        self.name = name
        self.__qualname__ = name
        self.__module__ = "guest"

    def __bind_program__(self, args: tuple[Any, ...], perform: Any) -> Generator[Any, Any, Any]:
        export = self.guest.exports.get(self.name)
        if export is not None and len(args) != len(export.parameters):
            raise TypeError(f"{self.name} takes {len(export.parameters)} arguments, not {len(args)}")
        return self.guest.run(self.name, args, perform)


def _effect_class(operation: GuestOperation) -> type[GuestEffect]:
    name = operation.label or f"{operation.effect}.{operation.op}"
    made: Any = new_class(name, (GuestEffect,), {"kind": operation.kind}, lambda body: body.update(__module__=__name__))
    made.operation = operation
    return made  # type: ignore[no-any-return]


def _check_module(module: bytes) -> None:
    missing = [name for name in _REQUIRED if exported_names(module).get(name) != 0]
    if missing:
        raise GuestRefused(f"the module does not export {', '.join(missing)}")


def _json(section: bytes, name: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(section)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GuestRefused(f"section {name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise GuestRefused(f"section {name} is not a JSON object")
    return found


def _read_exports(section: bytes | None) -> dict[str, GuestExport]:
    if section is None:
        raise GuestRefused(f"the module has no section {EXPORT_ABI}", remedy="compile it with host ABI 2")
    found = _json(section, EXPORT_ABI)
    for key, number in _NUMBERS.items():
        if found.get(key) != number:
            raise GuestRefused(f"{EXPORT_ABI} has {key} {found.get(key)!r}; this host speaks {number}")
    transport = found.get("transport") or {}
    if (transport.get("id"), transport.get("version")) != TRANSPORT:
        raise GuestRefused(f"{EXPORT_ABI} asks for the transport {transport}; this host speaks {TRANSPORT[0]} 1")
    schemas = SchemaReader()
    exports = {}
    try:
        for each in found.get("exports", ()):
            name = each["name"]
            parameters = [schemas.read(parameter) for parameter in each.get("params", ())]
            result = schemas.read(each.get("result", "void"))
            exports[name] = GuestExport(
                name,
                each.get("id", export_id(name)),
                parameters,
                result,
                each.get("abi", ""),
                each.get("wrapperName") or "",
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise GuestRefused(f"{EXPORT_ABI} is incomplete: {error!r}") from None
    return exports


def _read_effects(section: bytes | None, count: int) -> dict[int, tuple[list[Schema], Schema]]:
    if section is None:
        return {}
    found = _json(section, EFFECT_ABI)
    if found.get("version") != 1:
        raise GuestRefused(f"{EFFECT_ABI} has version {found.get('version')!r}; this host speaks 1")
    schemas = SchemaReader()
    signatures = {}
    try:
        for each in found.get("ops", ()):
            index = each["opIndex"]
            if not 0 <= index < count:
                raise GuestRefused(f"{EFFECT_ABI} describes operation {index}, which is not in the table")
            parameters = [schemas.read(parameter) for parameter in each["params"]]
            signatures[index] = (parameters, schemas.read(each["result"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise GuestRefused(f"{EFFECT_ABI} is incomplete: {error!r}") from None
    return signatures
