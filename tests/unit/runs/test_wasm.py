"""Wasm guests, with a guest written in WAT (`guests/adder.wat`): what it does is said at its top."""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring.guests import load_wasm
from mainspring.guests.voyd import GuestFailure, GuestProtocolError, GuestRefused, GuestTrap, VoydGuest
from mainspring.guests.voyd.frames import decode, invocation
from mainspring.guests.voyd.machine import to_binary
from mainspring.guests.voyd.module import export_id, parse_table
from mainspring.guests.voyd.schema import SchemaReader, fingerprint_of
from mainspring.log import Log
from mainspring.runs import Cancelled, Effect, Failed, Value, end, resume, tail
from tests.support.runs import World, memory_log


def effect_hash(effect_id: str) -> int:
    """FNV-1a 64 over the UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in effect_id.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def signature_hash(parameters: list[str], result: str) -> int:
    """MurmurHash3 x86-32, seed 0, of `(dto:FP,dto:FP)->dto:FP`; arguments are fingerprints."""
    text = f"({','.join(f'dto:{each}' for each in parameters)})->dto:{result}"
    return _murmur3(text.encode())


def _murmur3(data: bytes) -> int:
    value = 0
    whole = len(data) // 4 * 4
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        value ^= _scrambled(block)
        value = (value << 13 | value >> 19) & 0xFFFFFFFF
        value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= _scrambled(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & 0xFFFFFFFF
    return value


def _scrambled(block: int) -> int:
    block = block * 0xCC9E2D51 & 0xFFFFFFFF
    block = (block << 15 | block >> 17) & 0xFFFFFFFF
    return block * 0x1B873593 & 0xFFFFFFFF


ADDER = Path(__file__).parent / "guests" / "adder.wat"
BINARY = to_binary(ADDER.read_bytes())
I32, VOID = fingerprint_of(["i32"]), fingerprint_of(["void"])
AWAIT = ("test::Async", 0, signature_hash([I32], I32))
LOG = ("test::Log", 0, signature_hash([I32], VOID))
MODEST_FUEL = 2_000_000


def varuint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def with_section(name: str, content: bytes | None) -> bytes:
    """The adder with one custom section replaced, or left out."""
    out, position = BINARY[:8], 8
    while position < len(BINARY):
        number, start = BINARY[position], position
        position, size, shift = position + 1, 0, 0
        while True:
            byte = BINARY[position]
            size, shift, position = size | (byte & 0x7F) << shift, shift + 7, position + 1
            if not byte & 0x80:
                break
        body = BINARY[position : position + size]
        position += size
        if number != 0 or body[1 : 1 + body[0]] != name.encode():
            out += BINARY[start:position]
    if content is None:
        return out
    body = bytes([len(name)]) + name.encode() + content
    return out + b"\0" + varuint(len(body)) + body


def table(version: int = 2, kind: int = 0) -> bytes:
    """An effect table of one operation."""
    names = b"test::Async\0test::Async.await\0explicit\0"
    hashed = effect_hash("test::Async")
    words = [hashed & 0xFFFFFFFF, hashed >> 32, 0, 0, kind, AWAIT[2], 12]
    words += [30] if version == 3 else []
    return struct.pack("<II", version, 1) + struct.pack(f"<{len(words)}I", *words) + names


class Stage:
    """A world with the adder loaded and its operations handled."""

    def __init__(self, *, source: bytes = BINARY, log: Log | None = None, **limits: int) -> None:
        limits.setdefault("fuel_per_step", MODEST_FUEL)
        self.world = World(**({"log": log} if log is not None else {}))
        self.runtime = self.world.runtime
        self.guest: VoydGuest = load_wasm(self.runtime, source, **limits)
        self.heard: list[str] = []
        self.guest.handle(*AWAIT, self.answer)
        self.guest.handle(*LOG, lambda effect, ctx: self.heard.append(f"log:{effect.args[0]}") or tail())

    def answer(self, effect: Any, ctx: Any) -> Any:
        self.heard.append(f"await:{effect.args[0]}")
        return resume(effect.args[0] * 10)

    def main(self, n: Any) -> Any:
        run = self.runtime.start(self.guest.entry("main"), n)
        self.runtime.run_until_idle()
        return run.outcome_now()


def test_hashes_are_those_of_the_protocol() -> None:
    assert export_id("main") == 1967681796
    assert AWAIT[2] == 0xB152D825
    assert I32.startswith("36fb3899")
    assert [fingerprint_of([kind])[:8] for kind in ("void", "i64", "f64", "bool")] == [
        *("40955b5a", "2486c5ad", "a1e73a33", "e07fcbc5")
    ]
    assert effect_hash("") == 0xCBF29CE484222325


def test_a_guest_runs_as_an_ordinary_run() -> None:
    stage = Stage()
    assert stage.main(3) == Value(60)
    assert stage.heard == ["await:3", "log:30", "await:2", "log:50", "await:1", "log:60"]
    assert stage.main(0) == Value(0)


def test_two_guests_runs_take_turns_step_by_step() -> None:
    stage = Stage()
    stage.runtime._scheduler.budget = 1
    runs = [stage.runtime.start(stage.guest.entry("main"), 2) for _ in range(2)]
    stage.runtime.run_until_idle()
    assert stage.heard == [
        *("await:2", "await:2", "log:20", "log:20"),
        *("await:1", "await:1", "log:30", "log:30"),
    ]
    assert [run.outcome_now() for run in runs] == [Value(30), Value(30)]


def test_many_interleaved_runs_keep_their_own_state_and_share_their_buffers() -> None:
    stage = Stage(buffer_bytes=4096)
    runs = [stage.runtime.start(stage.guest.entry("main"), n % 7) for n in range(100)]
    stage.runtime.run_until_idle()
    assert [run.outcome_now() for run in runs] == [Value(sum(range(n % 7 + 1)) * 10) for n in range(100)]
    size = stage.guest.memory_bytes
    for _ in range(3):
        for n in range(100):
            stage.runtime.start(stage.guest.entry("main"), n % 7)
        stage.runtime.run_until_idle()
    assert stage.guest.memory_bytes == size


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc to read its memory from")
def test_memory_stays_flat_over_many_steps() -> None:
    """Set MAINSPRING_TEST_WASM_STEPS=200000 for the long form."""
    stage = Stage()
    each = 1000
    steps = int(os.environ.get("MAINSPRING_TEST_WASM_STEPS", "20000"))

    def run_some(rounds: int) -> None:
        for _ in range(rounds):
            stage.heard.clear()
            assert isinstance(stage.main(each // 2), Value)
            stage.runtime.trace.clear()

    run_some(5)
    memory, before = stage.guest.memory_bytes, resident()
    run_some(steps // each)
    assert stage.guest.memory_bytes == memory
    assert resident() - before < 8 << 20, "a leaked reference per step would cost far more"


async def test_a_guests_handler_may_be_a_coroutine_and_its_run_may_be_cancelled() -> None:
    stage = Stage()
    gate = asyncio.get_running_loop().create_future()

    async def slow(effect: Any, ctx: Any) -> Any:
        return resume(await asyncio.shield(gate))

    stage.guest.handle(*AWAIT, slow)
    waiting, cut = (stage.runtime.start(stage.guest.entry("main"), 1) for _ in range(2))
    await stage.runtime.settle()
    reason = {"any": "object"}
    assert (cut.cancel(reason), cut.cancel("again")) == (True, False)
    gate.set_result(5)
    await stage.runtime.settle()
    assert waiting.outcome_now() == Value(5)
    assert cut.outcome_now() == Cancelled(reason)
    assert stage.heard == ["log:5"], "the continuation of the cancelled run was never resumed"


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (lambda effect, ctx: tail(1), "kind resume"),
        (lambda effect, ctx: resume("text"), "answer should be i32"),
        (lambda effect, ctx: resume(1 << 31), "does not fit i32"),
        (lambda effect, ctx: resume([1, 2]), "answer should be i32"),
        (lambda effect, ctx: resume(True), "answer should be i32"),
        (lambda effect, ctx: 1 / 0, "division"),
    ],
)
def test_a_bad_answer_fails_the_run_before_the_guest_is_resumed(handler: Callable[..., Any], says: str) -> None:
    stage = Stage()
    stage.guest.handle(*AWAIT, handler)
    outcome = stage.main(1)
    assert isinstance(outcome, Failed)
    assert says in str(outcome.error)
    assert stage.heard == []


def test_a_bad_answer_names_the_operation() -> None:
    stage = Stage()
    stage.guest.handle(*AWAIT, lambda effect, ctx: resume(None))
    text = str(stage.main(1).error)
    assert all(part in text for part in ("test::Async::await", "op 0", "resume", "before resuming"))


def test_end_completes_without_resuming_the_guest() -> None:
    stage = Stage()
    stage.guest.handle(*AWAIT, lambda effect, ctx: end(99))
    assert stage.main(1) == Value(99)
    assert stage.heard == []


def test_a_tail_operation_is_answered_with_tail_only() -> None:
    stage = Stage()
    stage.guest.handle(*LOG, lambda effect, ctx: resume(None))
    assert "kind tail" in str(stage.main(1).error)


def test_a_missing_handler_fails_the_run_with_the_label() -> None:
    world = World()
    guest = load_wasm(world.runtime, ADDER)
    run = world.runtime.start(guest.entry("main"), 1)
    world.runtime.run_until_idle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert "test::Async::await" in str(outcome.error)


@pytest.mark.parametrize(
    ("way", "kind", "says"),
    [
        (-1, GuestTrap, "the guest panicked"),
        (-2, GuestTrap, "limit of instructions"),
        (-3, GuestProtocolError, "status 7"),
        (-4, GuestProtocolError, "larger buffer_bytes"),
        (-5, GuestProtocolError, "larger buffer_bytes"),
        (-6, GuestProtocolError, "MessagePack"),
        (-7, GuestProtocolError, "operation 99"),
        (-8, GuestFailure, "the guest gave up"),
        (-9, GuestTrap, "the guest panicked"),
        (-10, GuestProtocolError, "table does not describe"),
        (-11, GuestProtocolError, "another export"),
    ],
)
def test_a_guest_that_misbehaves_fails_its_run_and_nothing_else(way: int, kind: type, says: str) -> None:
    stage = Stage(max_memory_bytes=16 << 20)
    other = stage.runtime.start(stage.guest.entry("main"), 2)
    outcome = stage.main(way)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, kind)
    assert says in str(outcome.error)
    assert other.outcome_now() == Value(30)
    assert stage.main(1) == Value(10), "the guest still works for others"
    assert len(stage.world.failures) == 1


def test_a_panic_is_told_once() -> None:
    stage = Stage()
    first, second = stage.main(-1), stage.main(-1)
    assert (first.error.panic, second.error.panic) == ("the guest panicked", "the guest panicked")
    stage.runtime.handle(stage.guest.effect_class(*AWAIT), lambda effect, ctx: resume(0))
    assert stage.main(1) == Value(0)


def test_a_guest_cannot_take_more_memory_than_allowed() -> None:
    stage = Stage(max_memory_bytes=8 << 20)
    stage.main(-9)
    assert stage.guest.memory_bytes <= 8 << 20


def test_a_small_buffer_is_a_failure_that_says_so() -> None:
    stage = Stage(buffer_bytes=64)
    outcome = stage.main(1)
    assert isinstance(outcome, Failed)
    assert "buffer_bytes" in str(outcome.error)


@pytest.mark.parametrize("bad", ["1", None, 1.5, 1 << 31, -(1 << 31) - 1])
def test_an_argument_that_does_not_fit_fails_the_run(bad: Any) -> None:
    outcome = Stage().main(bad)
    assert isinstance(outcome, Failed)
    assert "argument 0" in str(outcome.error)


def test_wrong_argument_counts_are_refused_before_a_run_exists_and_unknown_entries_fail_it() -> None:
    stage = Stage()
    with pytest.raises(TypeError):
        stage.runtime.start(stage.guest.entry("main"))
    run = stage.runtime.start(stage.guest.entry("nothing"))
    stage.runtime.run_until_idle()
    assert run.id == "run_1"
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert "missing export" in str(outcome.error)


@pytest.mark.parametrize("key", [("test::Async", 0, 1), ("test::Async", 7, AWAIT[2]), ("other", 0, AWAIT[2])])
def test_an_unknown_operation_is_an_error_at_registration(key: Any) -> None:
    with pytest.raises(GuestRefused):
        Stage().guest.handle(*key, lambda effect, ctx: resume(1))


def test_tables_of_version_2_and_3_are_understood() -> None:
    (second,), (third,) = parse_table(table(2)), parse_table(table(3))
    assert (second.label, second.kind, second.operation_id) == ("test::Async::await", "resume", "")
    assert (third.label, third.signature, third.operation_id) == ("test::Async::await", AWAIT[2], "explicit")
    assert parse_table(struct.pack("<II", 2, 0)) == []


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (table(1), "version 1"),
        (table(4), "version 4"),
        (table(kind=99), "resume kind 99"),
        (table()[:20], "truncated"),
        (table()[:4], "truncated"),
        (table(3)[:-2], "not terminated"),
        (None, "no section __voyd_effect_table"),
    ],
    ids=["version 1", "version 4", "kind 99", "cut in an entry", "cut in the header", "cut in a name", "missing"],
)
def test_a_module_with_a_bad_table_is_refused(section: bytes | None, says: str) -> None:
    with pytest.raises(GuestRefused, match=says):
        load_wasm(World().runtime, with_section("__voyd_effect_table", section))


def test_a_module_with_a_version_3_table_runs() -> None:
    names = b"test::Async\0test::Async.await\0test::Log\0test::Log.log\0\0"
    words = []
    for (effect, op, signature), kind, name, label in ((AWAIT, 0, 0, 12), (LOG, 1, 30, 40)):
        hashed = effect_hash(effect)
        words += [hashed & 0xFFFFFFFF, hashed >> 32, name, op, kind, signature, label, len(names) - 1]
    section = struct.pack("<II", 3, 2) + struct.pack("<16I", *words) + names
    stage = Stage(source=with_section("__voyd_effect_table", section))
    assert stage.main(3) == Value(60)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"", "neither wasm nor WAT"),
        (b"not a module", "neither wasm nor WAT"),
        (BINARY[:-20], "longer than the module"),
        (BINARY[:8] + b"\0\xff\xff\xff\xff\x0f", "longer than the module"),
        (with_section("voyd.export_abi", None), "no section voyd.export_abi"),
        (with_section("voyd.export_abi", b"{"), "not JSON"),
        (with_section("voyd.export_abi", b"[]"), "not a JSON object"),
        (with_section("voyd.export_abi", b'{"version":1}'), "version"),
        (
            with_section(
                "voyd.export_abi",
                b'{"version":2,"hostAbi":2,"dtoSchemaAbi":1,"transport":{"id":"other","version":1},"exports":[]}',
            ),
            "transport",
        ),
        (with_section("voyd.effect_abi", b'{"version":9}'), "version 9"),
        (with_section("voyd.effect_abi", b'{"version":1,"ops":[{"opIndex":5}]}'), "operation 5"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_with_the_reason(source: bytes, says: str) -> None:
    with pytest.raises(GuestRefused, match=says):
        load_wasm(World().runtime, source)


def test_modules_without_the_exports_are_refused() -> None:
    custom = '(@custom "__voyd_effect_table" "\\02\\00\\00\\00\\00\\00\\00\\00")' + (
        '(@custom "voyd.export_abi" "{\\22version\\22:2,\\22hostAbi\\22:2,\\22dtoSchemaAbi\\22:1,'
        '\\22transport\\22:{\\22id\\22:\\22voyd.std.msgpack\\22,\\22version\\22:1},\\22exports\\22:[]}")'
    )
    world = World()
    with pytest.raises(GuestRefused, match="init_effects"):
        load_wasm(world.runtime, f'(module (memory (export "memory") 1) {custom})'.encode())
    exports = "".join(
        f'(func (export "{name}"))'
        for name in ("init_effects", "effect_status", "effect_len", "effect_cont", "resume_effectful")
    )
    with pytest.raises(GuestRefused, match="memory"):
        load_wasm(world.runtime, f"(module {exports} {custom})".encode())
    with pytest.raises(GuestRefused, match="init_effects"):
        load_wasm(world.runtime, f'(module (memory (export "memory") 1) {exports} {custom})'.encode())


def small_module(exports: list[dict[str, Any]], functions: str) -> bytes:
    """A module with no operation, these exports, and the functions that the protocol wants."""
    abi = {"version": 2, "hostAbi": 2, "dtoSchemaAbi": 1, "exports": exports}
    text = json.dumps({**abi, "transport": {"id": "voyd.std.msgpack", "version": 1}}).replace('"', "\\22")
    required = """
        (memory (export "memory") 8)
        (func (export "init_effects") (param i32))
        (func (export "effect_status") (param i32) (result i32) (i32.const 0))
        (func (export "effect_len") (param i32) (result i32) (i32.const 0))
        (func (export "effect_cont") (param i32) (result i32) (i32.const 0))
        (func (export "resume_effectful") (param i32) (result i32) (i32.const 0))
    """
    custom = f'(@custom "__voyd_effect_table" "\\02\\00\\00\\00\\00\\00\\00\\00")(@custom "voyd.export_abi" "{text}")'
    return f"(module {functions} {required} {custom})".encode()


TASKS = '(import "voyd.task" "spawn" (func $spawn (param i32) (result i32)))'
EXPORTS = [
    {"name": "add", "abi": "direct", "params": ["i32", "i64"], "result": "i64"},
    {"name": "half", "abi": "direct", "params": ["f64"], "result": "f64"},
    {"name": "odd", "abi": "direct", "params": ["i32"], "result": "bool"},
    {"name": "nothing", "abi": "direct"},
    {"name": "start", "abi": "direct", "params": ["i32"], "result": "i32"},
    {"name": "greet", "params": ["string"], "result": "string"},
]
FUNCTIONS = f"""{TASKS}
    (func (export "add") (param i32 i64) (result i64) (i64.add (i64.extend_i32_s (local.get 0)) (local.get 1)))
    (func (export "half") (param f64) (result f64) (f64.div (local.get 0) (f64.const 2)))
    (func (export "odd") (param i32) (result i32) (i32.and (local.get 0) (i32.const 1)))
    (func (export "nothing"))
    (func (export "start") (param i32) (result i32) (call $spawn (local.get 0)))
    (func (export "greet"))
"""


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [("add", (2, 2**40), 2**40 + 2), ("half", (3.0,), 1.5), ("odd", (7,), True), ("nothing", (), None)],
)
def test_a_pure_export_of_numbers_runs_in_one_step(name: str, args: tuple[Any, ...], value: Any) -> None:
    world = World()
    guest = load_wasm(world.runtime, small_module(EXPORTS, FUNCTIONS))
    run = world.runtime.start(guest.entry(name), *args)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value(value)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("start", (1,), r"called voyd\.task::spawn, which this host does not provide"),
        ("greet", ("ada",), "greet cannot be called this way: expected 0 arguments"),
        ("add", ("1", 2), "argument 0 should be i32"),
        ("missing", (), "missing export missing: the module has add, half"),
    ],
)
def test_what_a_host_does_not_provide_fails_the_run_that_needs_it(name: str, args: tuple[Any, ...], says: str) -> None:
    """A module that imports tasks loads; only what uses them fails, by name."""
    world = World()
    guest = load_wasm(world.runtime, small_module(EXPORTS, FUNCTIONS))
    run = world.runtime.start(guest.entry(name), *args)
    world.runtime.run_until_idle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert re.search(says, str(outcome.error))


def test_operations_are_handled_by_their_names_too() -> None:
    stage = Stage()
    stage.guest.handle_named("test::Async::await", lambda effect, ctx: resume(1))
    stage.guest.handle_named("Log::log", lambda effect, ctx: tail())
    run = stage.runtime.start(stage.guest.entry("main"), 3)
    stage.runtime.run_until_idle()
    assert run.outcome_now() == Value(3)
    with pytest.raises(GuestRefused, match="no operation Log::read") as refused:
        stage.guest.handle_named("Log::read", lambda effect, ctx: tail())
    assert "test::Async::await" in refused.value.remedy


async def test_a_durable_guest_goes_on_after_a_restart() -> None:
    log = await memory_log()
    heard: list[str] = []
    laters: list[Any] = []

    async def boot(answer: Callable[..., Any]) -> Stage:
        stage = Stage(log=log)
        stage.heard = heard
        stage.guest.handle(*AWAIT, answer)
        stage.runtime.register(stage.guest.entry("main"), "adder:main")
        await stage.runtime.start_service()
        return stage

    def stuck_at_one(effect: Effect[Any], ctx: Any) -> Any:
        n = effect.args[0]  # type: ignore[attr-defined]
        if n > 1:
            return resume(n)
        laters.append(ctx.later())
        return laters[-1]

    first = await boot(stuck_at_one)
    first.runtime.start("adder:main", 3, durable=True, id="a")
    await first.runtime.settle()
    assert heard == ["log:3", "log:5"]
    second = await boot(lambda effect, ctx: resume(100))
    await second.runtime.settle()
    assert (await second.runtime.durable.find("a")).outcome_now() == Value(105)
    assert heard == ["log:3", "log:5", "log:105"]


# -- values at the border


def schema(source: Any) -> Any:
    return SchemaReader().read(source)


RECORD = {
    "kind": "record",
    "name": "P",
    "fields": [{"name": "x", "type": {"kind": "i32"}}, {"name": "y", "optional": True, "type": {"kind": "string"}}],
}
UNION = {
    "kind": "union",
    "name": "U",
    "variants": [{"name": "A", "fields": [{"name": "n", "type": {"kind": "i64"}}]}, {"name": "B", "fields": []}],
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ({"kind": "bool"}, True),
        ({"kind": "i32"}, -5),
        ({"kind": "i64"}, 1 << 40),
        ({"kind": "i64"}, 3),
        ({"kind": "f64"}, 1.5),
        ({"kind": "f32"}, 0.5),
        ({"kind": "void"}, None),
        ({"kind": "string"}, "grüße"),
        ({"kind": "bytes"}, b"\0\1"),
        ({"kind": "array", "element": {"kind": "i32"}}, [1, 2, 3]),
        (RECORD, {"x": 1, "y": "z"}),
        (RECORD, {"x": 1}),
        (UNION, {"$variant": "A", "n": 7}),
        (UNION, {"$variant": "B"}),
        ({"kind": "custom", "representation": {"kind": "string"}}, "as text"),
    ],
)
def test_values_cross_the_border_and_come_back(source: Any, value: Any) -> None:
    kind = schema(source)
    frame = invocation(7, [kind], (value,))
    ((fingerprint, wire),) = decode(frame)[3]
    assert fingerprint == kind.fingerprint
    assert kind.from_wire(wire) == value


def test_a_long_integer_keeps_its_width_on_the_wire() -> None:
    assert b"\xd3" + struct.pack(">q", 3) in invocation(7, [schema({"kind": "i64"})], (3,))


@pytest.mark.parametrize(
    ("source", "value", "says"),
    [
        ({"kind": "i32"}, True, "should be i32"),
        ({"kind": "i64"}, 1 << 63, "does not fit"),
        ({"kind": "f64"}, "1", "should be f64"),
        ({"kind": "f32"}, 1e300, "does not fit"),
        ({"kind": "void"}, 0, "should be void"),
        ({"kind": "array", "element": {"kind": "i32"}}, [1, "2"], r"value\[1\]"),
        (RECORD, {"y": "z"}, r"value\.x is missing"),
        (RECORD, {"x": 1, "z": 2}, "unknown field 'z'"),
        (RECORD, [1], "mapping"),
        (UNION, {"$variant": "C"}, "no variant"),
        (UNION, 5, "no variant"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_both_directions(source: Any, value: Any, says: str) -> None:
    kind = schema(source)
    with pytest.raises(GuestProtocolError, match=says):
        kind.to_wire(value)
    with pytest.raises(GuestProtocolError, match=says):
        kind.from_wire(value)


def test_recursive_types_and_their_depth() -> None:
    tree = schema(
        {
            "kind": "record",
            "name": "T",
            "fields": [{"name": "next", "optional": True, "type": {"kind": "ref", "name": "T"}}],
        }
    )
    assert tree.to_wire({"next": {"next": {}}}) == {"next": {"next": {}}}
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"next": deep}
    with pytest.raises(GuestProtocolError, match="deep"):
        tree.to_wire(deep)


def test_recursive_types_are_named_by_their_aliases() -> None:
    """As the compiler writes `type Tree = Leaf | Branch`, with `Branch { children: Array<Tree> }`."""
    children = {"kind": "array", "typeId": 40, "element": {"kind": "ref", "typeId": 11751}}
    source = {
        "kind": "union",
        "typeId": 7,
        "aliases": [11751, "Tree"],
        "fingerprint": "f" * 64,
        "variants": [
            {"name": "Leaf", "fields": [{"name": "value", "type": "i32"}]},
            {"name": "Branch", "fields": [{"name": "children", "type": children}]},
        ],
    }
    reader = SchemaReader()
    tree = reader.read(source)
    assert tree.fingerprint == "f" * 64
    assert reader.read({"kind": "ref", "typeId": 11751}).fingerprint == "f" * 64
    value = {"$variant": "Branch", "children": [{"$variant": "Leaf", "value": 1}]}
    assert tree.from_wire(tree.to_wire(value)) == value
    assert reader.read({"kind": "ref", "typeId": 40}).to_wire([]) == []


@pytest.mark.parametrize(
    "source", [{"kind": "what"}, {}, 7, {"kind": "ref", "name": "nobody"}, {"kind": "array"}], ids=str
)
def test_unknown_schemas_are_refused(source: Any) -> None:
    with pytest.raises(GuestRefused):
        schema(source)
