"""The one place that touches wasmtime.

The protocol passes garbage-collected references between host and guest. wasmtime's public Python face aborts the whole
interpreter when it looks at such a type, so exported functions are called through its C bindings: values are put into
arrays by hand, and no function is ever asked for its type. A reference that came out of the guest is a root that keeps
its object alive until it is given up, so every `Ref` must be released; what is passed into a call is a copy that is
given up right after it.

The C bindings are private to wasmtime, hence the range of versions in the extra and the smoke test in the suite.
"""

# private names: wasmtime's C bindings have no public names for what is done here

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any, Final

from mainspring.guests.voyd.errors import GuestProtocolError, GuestRefused, GuestTrap
from mainspring.guests.wasm import LinearMemory, wasmtime_library

_I32: Final = 0  # the kind of a number in wasmtime_val_t; everything else the protocol returns is a reference
_KINDS: Final = {"bool": _I32, "i32": _I32, "i64": 1, "f32": 2, "f64": 3}
_FIELDS: Final = {_I32: "i32", 1: "i64", 2: "f32", 3: "f64"}
NO_PANIC: Final = -1
_IMPORT: Final = re.compile(r"unknown import: `([^`]+)`")


def _text(name: Any) -> str:
    return bytes(name.contents.data[: name.contents.size]).decode()


def to_binary(source: bytes) -> bytes:
    """A wasm binary from itself, or from WAT text."""
    if source[:4] == b"\0asm":
        return source
    wasmtime = wasmtime_library()
    try:
        return bytes(wasmtime.wat2wasm(source.decode()))
    except (wasmtime.WasmtimeError, UnicodeDecodeError) as error:
        raise GuestRefused(f"this is neither wasm nor WAT: {str(error).splitlines()[0]}") from None


class Ref:
    """An object of the guest, kept alive until `release`."""

    __slots__ = ("_ffi", "_value")

    def __init__(self, ffi: Any, value: Any) -> None:
        self._ffi = ffi
        self._value = value

    def copy_to(self, slot: Any) -> None:
        self._ffi.wasmtime_val_clone(ctypes.byref(self._value), ctypes.byref(slot))

    def release(self) -> None:
        """Let the guest's collector have it. Idempotent."""
        if self._value is not None:
            self._ffi.wasmtime_val_unroot(ctypes.byref(self._value))
            self._value = None


class Machine:
    """One instance of a module, with its limits."""

    def __init__(
        self,
        module: bytes,
        *,
        max_memory_bytes: int,
        fuel_per_call: int,
        offer: Callable[[str, str], Callable[..., int | Ref] | None] = lambda module, name: None,
    ) -> None:
        """`offer` gives the function for an import that the host provides, by module and name."""
        wasmtime = wasmtime_library()
        from wasmtime import _ffi

        self._wasmtime = wasmtime
        self._ffi: Any = _ffi
        self._fuel = fuel_per_call
        self._raised: Exception | None = None  # by a function that the guest called
        self._callbacks: list[Any] = []  # kept alive as long as the guest
        self.caller: Any = None  # who executes the guest now
        config = wasmtime.Config()
        config.wasm_gc = True
        config.wasm_function_references = True
        config.wasm_tail_call = True
        config.consume_fuel = True
        engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(engine)
        self._store.set_limits(memory_size=max_memory_bytes, instances=1, memories=1, tables=16, table_elements=65_536)
        self._store.set_fuel(fuel_per_call)
        try:
            compiled = wasmtime.Module(engine, module)
            linker = wasmtime.Linker(engine)
            self._define(linker, compiled, offer)
            linker.define_unknown_imports_as_traps(compiled)  # by wasmtime: their types must not be looked at here
            instance = linker.instantiate(self._store, compiled)
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise GuestRefused(f"the module cannot be instantiated: {str(error).splitlines()[0]}") from None
        exports = instance.exports(self._store)
        self._functions = {name: exports[name]._func for name in exports if isinstance(exports[name], wasmtime.Func)}
        self._globals = {name: exports[name] for name in exports if isinstance(exports[name], wasmtime.Global)}
        memory = exports.get("memory")
        if not isinstance(memory, wasmtime.Memory):
            raise GuestRefused("the module exports no memory", remedy="export it as `memory`")
        self.memory: LinearMemory = LinearMemory(memory, self._store)

    def _define(self, linker: Any, module: Any, offer: Callable[[str, str], Callable[..., int | Ref] | None]) -> None:
        """Provide what is offered. The type of an import is passed on as the module has it, and not looked at."""
        ffi, imports = self._ffi, self._ffi.wasm_importtype_vec_t()
        ffi.wasmtime_module_imports(module.ptr(), ctypes.byref(imports))
        try:
            for index in range(imports.size):
                each = imports.data[index]
                place, name = (_text(read(each)) for read in (ffi.wasm_importtype_module, ffi.wasm_importtype_name))
                function, type = offer(place, name), ffi.wasm_importtype_type(each)
                signature = ffi.wasm_externtype_as_functype_const(type)
                if function is None or not signature:
                    continue
                callback = ffi.wasmtime_func_callback_t(functools.partial(self._called_back, function))
                self._callbacks.append(callback)
                words = [(ctypes.create_string_buffer(part), len(part)) for part in (place.encode(), name.encode())]
                finalizer = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
                error = ffi.wasmtime_linker_define_func(
                    linker.ptr(), *words[0], *words[1], signature, callback, None, finalizer
                )
                if error:
                    raise self._wasmtime.WasmtimeError._from_ptr(error)
        finally:
            ffi.wasm_importtype_vec_delete(ctypes.byref(imports))

    def _called_back(
        self, function: Callable[..., int | Ref], _env: Any, _caller: Any, given: Any, count: int, results: Any, n: int
    ) -> int:
        """The guest calls a function of the host. What it raises stops the guest, and is raised by the call into it."""
        try:
            result = function(*(self._given(given[index]) for index in range(count)))
            if n and isinstance(result, Ref):
                result.copy_to(results[0])
                result.release()
            elif n:
                results[0].kind = _I32
                results[0].of.i32 = result
        except Exception as error:
            self._raised = error
            text = b"the host refused it"
            trap = self._ffi.wasmtime_trap_new(ctypes.create_string_buffer(text), len(text))
            return ctypes.cast(trap, ctypes.c_void_p).value or 0
        return 0

    def require(self, size: int) -> None:
        """Grow the memory to at least `size` bytes."""
        if not self.memory.grow_to(size):
            raise GuestProtocolError("the guest's memory cannot grow further", remedy="raise max_memory_bytes")

    def has(self, name: str) -> bool:
        return name in self._functions

    def call_direct(self, name: str, kinds: list[str], args: tuple[Any, ...], *, result: bool) -> Any:
        """Call an export whose parameters and result are plain numbers."""
        given = (self._ffi.wasmtime_val_t * len(args))()
        for index, (kind, value) in enumerate(zip(kinds, args, strict=True)):
            given[index].kind = _KINDS[kind]
            setattr(given[index].of, "i32" if kind == "bool" else kind, value)
        return self._call(name, given, result)

    def call(self, name: str, *args: int | Ref, result: bool = True, caller: Any = None) -> Any:
        """Call an export with numbers and references: an int, a Ref, or None without a result. Traps are GuestTrap.

        `caller` is who executes the guest, for functions that the guest calls meanwhile.
        """
        if name not in self._functions:
            raise GuestProtocolError(f"the module does not export {name}")
        ffi, self.caller = self._ffi, caller
        given = (ffi.wasmtime_val_t * len(args))()
        try:
            for index, value in enumerate(args):
                if isinstance(value, Ref):
                    value.copy_to(given[index])
                else:
                    given[index].kind = _I32
                    given[index].of.i32 = value
            return self._call(name, given, result)
        finally:
            self.caller = None
            for index, value in enumerate(args):
                if isinstance(value, Ref):
                    ffi.wasmtime_val_unroot(ctypes.byref(given[index]))

    def _call(self, name: str, given: Any, result: bool) -> Any:
        ffi = self._ffi
        results = (ffi.wasmtime_val_t * 1)()
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        self._store.set_fuel(self._fuel)
        error = ffi.wasmtime_func_call(
            self._store._context(),
            ctypes.byref(self._functions[name]),
            given,
            len(given),
            results,
            1 if result else 0,
            ctypes.byref(trap),
        )
        raised, self._raised = self._raised, None
        if raised is not None:
            (self._wasmtime.WasmtimeError if error else self._wasmtime.Trap)._from_ptr(error or trap)  # frees it
            raise raised
        if error:
            text = str(self._wasmtime.WasmtimeError._from_ptr(error))
            if (missing := _IMPORT.search(text)) is not None:
                raise GuestTrap(f"the guest called {missing[1]}, which this host does not provide")
            raise GuestProtocolError(f"export {name} cannot be called this way: {text.splitlines()[0]}")
        if trap:
            raise self._trapped(name, self._wasmtime.Trap._from_ptr(trap))
        return self._result(results[0]) if result else None

    def _result(self, value: Any) -> Any:
        if value.kind in _FIELDS:
            return getattr(value.of, _FIELDS[value.kind])
        kept = self._ffi.wasmtime_val_t()
        ctypes.pointer(kept)[0] = value
        return Ref(self._ffi, kept)

    def _given(self, value: Any) -> int | Ref:
        """What the guest passes: a number of 32 bits, or a copy of anything else, to be passed back as it is."""
        if value.kind == _I32:
            return int(value.of.i32)
        kept = self._ffi.wasmtime_val_t()
        self._ffi.wasmtime_val_clone(ctypes.byref(value), ctypes.byref(kept))
        return Ref(self._ffi, kept)

    def _trapped(self, name: str, trap: Any) -> GuestTrap:
        code = getattr(trap, "trap_code", None)
        if code is not None and code.name == "OUT_OF_FUEL":
            return GuestTrap(f"the guest did not come back from {name} within its limit of instructions")
        reason = code.name.lower().replace("_", " ") if code is not None else "trap"
        return GuestTrap(f"the guest trapped in {name} ({reason})", self._panic())

    def _panic(self) -> str:
        """What the guest said before it trapped; forgotten once read."""
        pointer, length = self._globals.get("__voyd_panic_ptr"), self._globals.get("__voyd_panic_len")
        if pointer is None or length is None:
            return ""
        start, size = pointer.value(self._store), length.value(self._store)
        pointer.set_value(self._store, NO_PANIC)
        length.set_value(self._store, 0)
        if start < 0 or size <= 0 or start + size > self.memory.size():
            return ""
        return self.memory.read(start, size).decode(errors="replace")
