"""WebAssembly guests on wasmtime: a module, its imports, and what it may use up.

Three limits, because a guest can go wrong in three ways. Memory: growing beyond the limit fails inside the guest. Fuel:
what it may compute between two waits; instructions burn it, calls to the host burn more, and a POLL that really waited
fills it up again, so a guest that serves for months is fine and one that spins is stopped. Wall time, if asked for:
the whole run, waiting included.

wasmtime is optional and large, so it is imported when a guest is run and not before.

Every import a guest can use is a method of `Abi` with the same name. Compilers import whole libraries, used or not, so
a function that this host does not offer is refused when it is called and not before. Sizes and handles are i32 and
pointers travel as i64, but hold an offset of 32 bits; whatever does not lie inside the memory is BOUNDS, and so is 0,
the null pointer. Nothing is read or written before all of a call's pointers are checked.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.errors import MainspringError, MissingExtra
from mainspring.guests.errors import Code
from mainspring.guests.guest import Guest
from mainspring.guests.protocol.control import LISTINGS

if TYPE_CHECKING:
    import wasmtime

CALL_FUEL = 20_000  # a call to the host takes about as long as this many instructions
ABI_VERSION = 0x00020005

_OPEN = struct.Struct("<QIQIIQI")  # kind pointer and length, name pointer and length, mode, params pointer and length
_LONGEST_NAME = 256
_LONGEST_TELEMETRY = 4096
_U32 = 0xFFFFFFFF
_SMALLEST_BLOCK = 16  # bytes, and the alignment of every block


class GuestFailed(MainspringError, code="guest_failed"):
    """A module could not be loaded, or stopped with a trap."""


class GuestLimit(MainspringError, code="guest_limit"):
    """A guest used up what it was given."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a guest may use."""

    memory_bytes: int = 64 << 20  # generous for a guest whose buffers are 64 KiB
    fuel: int = 5_000_000_000  # seconds of computing on a small machine, without a single wait
    wall_ms: int | None = None  # a guest that waits may run for months


_I32, _I64 = "i32", "i64"
_IMPORTS: dict[str, tuple[list[str], str]] = {
    "zi_abi_version": ([], _I32),
    "zi_ctl": ([_I64, _I32, _I64, _I32], _I32),
    "zi_read": ([_I32, _I64, _I32], _I32),
    "zi_write": ([_I32, _I64, _I32], _I32),
    "zi_end": ([_I32], _I32),
    "zi_alloc": ([_I32], _I64),
    "zi_free": ([_I64], _I32),
    "zi_telemetry": ([_I64, _I32, _I64, _I32], _I32),
    "zi_cap_count": ([], _I32),
    "zi_cap_get_size": ([_I32], _I32),
    "zi_cap_get": ([_I32, _I64, _I32], _I32),
    "zi_cap_open": ([_I64], _I32),
    "zi_handle_hflags": ([_I32], _I32),
}


def run_module(
    module: Path | bytes,
    guest: Guest,
    limits: Limits | None = None,
    telemetry: Callable[[str, str], None] = lambda topic, message: None,
) -> int:
    """Runs a module (.wasm, or the text form .wat) to its end and gives the exit code, 0 when `main` gives none.

    The module exports `memory` and `main`, which gets the handles of its input and output (0 and 1), or `_start`.
    Raises `GuestLimit` when a limit stopped it, `GuestFailed` for a trap or a bad module, and `MissingExtra` without
    wasmtime.
    """
    return _Run(wasmtime_library(), guest, limits or Limits(), telemetry).run(module)


def wasmtime_library() -> Any:
    """The package, which is optional."""
    try:
        import wasmtime
    except ImportError as error:
        raise MissingExtra(
            "running WebAssembly guests needs wasmtime", remedy="install it with: pip install 'mainspring[wasm]'"
        ) from error
    return wasmtime


class LinearMemory:
    """A guest's memory. It may move and grow between any two calls."""

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self._memory = memory
        self._store = store

    def size(self) -> int:
        return self._memory.data_len(self._store)

    def grow_to(self, size: int) -> bool:
        """Whether the memory has at least this many bytes now."""
        missing = size - self.size()
        if missing > 0:
            try:
                self._memory.grow(self._store, -(-missing // 65536))
            except Exception:  # wasmtime's own class, known only when it is installed: the limit was reached
                return False
        return True

    def read(self, start: int, count: int) -> bytes:
        return bytes(self._memory.read(self._store, start, start + count))

    def write(self, start: int, data: bytes) -> None:
        if data:
            self._memory.write(self._store, data, start)


class _Run:
    def __init__(self, library: Any, guest: Guest, limits: Limits, telemetry: Callable[[str, str], None]) -> None:
        self._lib = library
        self._guest = guest
        self._limits = limits
        self._telemetry = telemetry
        config = library.Config()
        config.consume_fuel = True
        config.epoch_interruption = limits.wall_ms is not None
        self._engine = library.Engine(config)
        self._store = library.Store(self._engine)
        self._store.set_limits(
            memory_size=limits.memory_bytes, instances=1, memories=1, tables=16, table_elements=65536
        )
        self._store.set_fuel(limits.fuel)
        self._abi: Abi | None = None
        self._waits = guest.waits

    def run(self, module: Path | bytes) -> int:
        try:
            instance = self._instantiate(_bytes_of(module, self._lib))
            exports = instance.exports(self._store)
            memory = exports.get("memory")
            if not isinstance(memory, self._lib.Memory):
                raise GuestFailed("the module exports no memory", remedy='add (export "memory" (memory 0))')
            linear = LinearMemory(memory, self._store)
            self._abi = Abi(self._guest, linear, Heap(linear, self._heap_base(exports, linear)), self._telemetry)
            return self._call_main(exports)
        except self._lib.Trap as trap:
            raise self._explained(trap) from trap
        except self._lib.WasmtimeError as error:
            raise GuestFailed(
                f"the module cannot be run: {_reason(str(error))}",
                remedy="compile it again; `wasm-tools validate` says where a module is wrong",
            ) from error

    def _instantiate(self, binary: bytes) -> Any:
        module = self._lib.Module(self._engine, binary)
        linker = self._lib.Linker(self._engine)
        linker.allow_shadowing = True  # a module may import one function twice
        for item in module.imports:
            if not isinstance(item.type, self._lib.FuncType):
                raise GuestFailed(
                    f"the module imports {item.module}.{item.name}, which is no function",
                    remedy="define memories, tables and globals in the module; only functions can be imported",
                )
            linker.define_func(item.module, item.name, item.type, self._import(item))
        if self._limits.wall_ms is not None:
            self._store.set_epoch_deadline(1)
        return linker.instantiate(self._store, module)

    def _import(self, item: Any) -> Callable[..., int]:
        offered = _IMPORTS.get(item.name) if item.module == "env" else None
        if offered is None:
            return _not_offered(item.module, item.name)
        found = [str(kind) for kind in item.type.params], [str(kind) for kind in item.type.results]
        if found != (offered[0], [offered[1]]):
            raise GuestFailed(
                f"the module imports env.{item.name} as {_signature(*found)}",
                remedy=f"declare it as {_signature(offered[0], [offered[1]])}",
            )
        return self._call(item.name)

    def _call(self, name: str) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            if self._abi is None:
                raise GuestFailed("the module calls its host before it is instantiated", remedy="do it in main")
            self._store.set_fuel(max(self._store.get_fuel() - CALL_FUEL, 0))
            result = int(getattr(self._abi, name)(*arguments))
            if self._guest.waits != self._waits:
                self._waits = self._guest.waits
                self._store.set_fuel(self._limits.fuel)
            return result

        return call

    def _heap_base(self, exports: Any, memory: LinearMemory) -> int:
        base = exports.get("__heap_base")
        return int(base.value(self._store)) if isinstance(base, self._lib.Global) else memory.size()

    def _call_main(self, exports: Any) -> int:
        main = exports.get("main") or exports.get("_start")
        if not isinstance(main, self._lib.Func):
            raise GuestFailed("the module exports neither main nor _start", remedy='add (export "main" (func $main))')
        takes = len(main.type(self._store).params)
        if takes not in (0, 2):
            raise GuestFailed(f"main takes {takes} parameters", remedy="take two handles (input, output) or nothing")
        alarm = self._set_alarm()
        try:
            result = main(self._store, *(0, 1)[:takes])
        finally:
            if alarm is not None:
                alarm.cancel()
        return result & 0xFF if isinstance(result, int) else 0

    def _set_alarm(self) -> threading.Timer | None:
        """At the end of the wall time a waiting guest is woken and a running one is stopped."""
        if self._limits.wall_ms is None:
            return None

        def stop() -> None:
            self._engine.increment_epoch()
            self._guest.interrupt()

        alarm = threading.Timer(self._limits.wall_ms / 1000, stop)
        alarm.daemon = True
        alarm.start()
        return alarm

    def _explained(self, trap: Any) -> MainspringError:
        code = trap.trap_code
        if code == self._lib.TrapCode.OUT_OF_FUEL:
            return GuestLimit(
                "the guest computed too long without waiting", remedy="wait in POLL, or give it more fuel (--max-fuel)"
            )
        if code == self._lib.TrapCode.INTERRUPT:
            return GuestLimit(
                f"the guest ran longer than {self._limits.wall_ms} ms", remedy="give it more time (--wall-limit-ms)"
            )
        return GuestFailed(f"the guest stopped: {_last_line(trap.message)}")


def _bytes_of(module: Path | bytes, library: Any) -> bytes:
    if isinstance(module, Path):
        try:
            module = module.read_bytes()
        except OSError as error:
            raise GuestFailed(f"cannot read the module: {error}", remedy="check the path") from error
    if module.startswith(b"\0asm"):
        return module
    try:
        text = module.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GuestFailed("this is neither a WebAssembly module nor its text form") from error
    return bytes(library.wat2wasm(text))


def _not_offered(module: str, name: str) -> Callable[..., int]:
    """What stands for a function that only other hosts have, until it is called."""

    def refuse(*_: object) -> int:
        raise GuestFailed(
            f"the guest called {module}.{name}, which this host does not offer",
            remedy=f"use what it offers, all from env: {', '.join(_IMPORTS)}",
        )

    return refuse


def _signature(takes: list[str], gives: list[str]) -> str:
    return f"({', '.join(takes)}) -> {', '.join(gives) or 'nothing'}"


def _reason(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "unknown reason"


def _last_line(text: str) -> str:
    """wasmtime puts where it happened first, and what happened last."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "unknown reason"


class Abi:
    """The calls of one guest with one memory."""

    def __init__(self, guest: Guest, memory: LinearMemory, heap: Heap, telemetry: Callable[[str, str], None]) -> None:
        self._guest = guest
        self._memory = memory
        self._heap = heap
        self._telemetry = telemetry

    def zi_abi_version(self) -> int:
        return ABI_VERSION

    # --- handles ---

    def zi_read(self, handle: int, target: int, cap: int) -> int:
        if not self._inside(target, cap & _U32):
            return Code.BOUNDS
        got = self._guest.read(handle, cap & _U32)
        if isinstance(got, int):
            return got
        self._memory.write(target, got)
        return len(got)

    def zi_write(self, handle: int, source: int, length: int) -> int:
        data = self._bytes(source, length & _U32)
        return Code.BOUNDS if data is None else self._guest.write(handle, data)

    def zi_end(self, handle: int) -> int:
        return self._guest.end(handle)

    def zi_handle_hflags(self, handle: int) -> int:
        return self._guest.flags(handle)

    def zi_ctl(self, request: int, length: int, response: int, cap: int) -> int:
        data = self._bytes(request, length & _U32)
        if data is None or not self._inside(response, cap & _U32):
            return Code.BOUNDS
        got = self._guest.ctl(data, cap & _U32)
        if isinstance(got, int):
            return got
        self._memory.write(response, got)
        return len(got)

    # --- capabilities ---

    def zi_cap_count(self) -> int:
        return len(LISTINGS)

    def zi_cap_get_size(self, index: int) -> int:
        return len(LISTINGS[index].encode()) if 0 <= index < len(LISTINGS) else Code.NOENT

    def zi_cap_get(self, index: int, target: int, cap: int) -> int:
        if not 0 <= index < len(LISTINGS):
            return Code.NOENT
        entry = LISTINGS[index].encode()
        if cap & _U32 < len(entry) or not self._inside(target, cap & _U32):
            return Code.BOUNDS
        self._memory.write(target, entry)
        return len(entry)

    def zi_cap_open(self, request: int) -> int:
        packed = self._bytes(request, _OPEN.size)
        if packed is None:
            return Code.BOUNDS
        kind_at, kind_size, name_at, name_size, mode, params_at, params_size = _OPEN.unpack(packed)
        if mode or not kind_size or not name_size:
            return Code.INVALID
        kind, name = self._bytes(kind_at, kind_size), self._bytes(name_at, name_size)
        params = self._bytes(params_at, params_size) if params_size else b""
        if kind is None or name is None or params is None:
            return Code.BOUNDS
        if max(kind_size, name_size) > _LONGEST_NAME:
            return Code.NOENT
        return self._guest.open(kind.decode("utf-8", "replace"), name.decode("utf-8", "replace"), params)

    # --- the rest ---

    def zi_alloc(self, size: int) -> int:
        return self._heap.alloc(size)

    def zi_free(self, pointer: int) -> int:
        return self._heap.free(pointer)

    def zi_telemetry(self, topic: int, topic_length: int, message: int, message_length: int) -> int:
        name, text = self._bytes(topic, topic_length & _U32), self._bytes(message, message_length & _U32)
        if name is None or text is None:
            return Code.BOUNDS
        self._telemetry(
            name[:_LONGEST_NAME].decode("utf-8", "replace"), text[:_LONGEST_TELEMETRY].decode("utf-8", "replace")
        )
        return Code.OK

    # --- memory ---

    def _inside(self, start: int, count: int) -> bool:
        return start > 0 and start + count <= self._memory.size()

    def _bytes(self, start: int, count: int) -> bytes | None:
        return self._memory.read(start, count) if self._inside(start, count) else None


class Heap:
    """Blocks in a guest's memory from `base` on, in sizes of powers of two.

    Guests bring their own allocators for anything serious; `zi_alloc` is there for the few buffers of a small one. So
    the simplest thing that reuses what was freed is enough: one list of free blocks per size, and the end of the heap.
    """

    def __init__(self, memory: LinearMemory, base: int) -> None:
        self._memory = memory
        self._end = -(-base // _SMALLEST_BLOCK) * _SMALLEST_BLOCK
        self._sizes: dict[int, int] = {}  # of the blocks in use
        self._free: dict[int, list[int]] = {}

    def alloc(self, size: int) -> int:
        """Where a block of at least `size` bytes begins; 0 when there is none."""
        if size <= 0:
            return 0
        rounded = max(_SMALLEST_BLOCK, 1 << (size - 1).bit_length())
        free = self._free.get(rounded)
        if free:
            start = free.pop()
        elif self._memory.grow_to(self._end + rounded):
            start = self._end
            self._end += rounded
        else:
            return 0
        self._sizes[start] = rounded
        return start

    def free(self, start: int) -> int:
        """Gives a block back; INVALID for what is none."""
        size = self._sizes.pop(start, None)
        if size is None:
            return Code.INVALID
        self._free.setdefault(size, []).append(start)
        return Code.OK
