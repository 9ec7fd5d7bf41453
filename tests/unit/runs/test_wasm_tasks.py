"""Guests that spawn tasks, as the compiler's own programs do: spawn, join, cancel, yield, detach, timeouts.

The guest is written by hand, with the imports and shapes of compiled ones: references to garbage-collected structs as
the work of a task, as its outcome and as its continuation. What it does is said beside each mode. A user of structured
tasks expects that an owner waits for its children, that cancelling it cancels them, and that no failure is lost.
"""

from __future__ import annotations

import json
import logging
import struct
from typing import Any

import msgspec
import pytest

from mainspring.guests import load_wasm
from mainspring.guests.voyd import GuestProtocolError, GuestTrap, VoydGuest
from mainspring.guests.voyd.module import export_id
from mainspring.guests.voyd.schema import fingerprint_of
from mainspring.log import Log
from mainspring.runs import Cancelled, Failed, UnobservedFailure, Value, tail
from tests.support.runs import World, memory_log

TASKS, TIME, RANDOM, LOG = "voyd.std.task.runtime", "voyd.std.time", "voyd.std.random", "voyd.std.log"
OPERATIONS = [
    (TASKS, 0, 0, "wait"),
    (TASKS, 1, 0, "yield_once"),
    (TASKS, 2, 1, "failure_message"),
    (TIME, 2, 1, "sleep_millis"),
    (TIME, 0, 1, "monotonic_now_millis"),
    (TIME, 1, 1, "system_now_millis"),
    (RANDOM, 0, 1, "next_i64"),
    (RANDOM, 1, 1, "fill_bytes"),
    (LOG, 0, 1, "emit"),
]
PLACE = 0x7FFFFFFF  # where a number is written into a request
JOIN, FAIL, CANCEL, LEAVE, UNSEEN, DETACH, YIELD, UNKNOWN, TWICE, GO_ON = range(10)


def table() -> bytes:
    names, words = b"", []
    for effect, op, kind, name in OPERATIONS:
        words += [0, 0, len(names), op, kind, op, len(names) + len(effect) + 1]
        names += f"{effect}\0std::Effect.{name}\0".encode()
    return struct.pack("<II", 2, len(OPERATIONS)) + struct.pack(f"<{len(words)}I", *words) + names


def wat(text: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in text)


def request(index: int, *args: Any) -> bytes:
    effect, op, kind, _ = OPERATIONS[index]
    typed = [["f", arg] for arg in args]
    return msgspec.msgpack.encode([2, 2, index, effect, op, op, kind, typed, "f"])


def completion(name: str, kind: str, value: Any) -> bytes:
    return msgspec.msgpack.encode([2, 1, export_id(name), [0, [fingerprint_of([kind]), value]]])


def module(more_exports: list[dict[str, Any]] | None = None, functions: str = "") -> bytes:
    """The guest. `main(mode)` does what the mode says; the work of a task is 1: panic, 2: sleep 5 ms, else: double."""
    exports: list[dict[str, Any]] = [{"name": "main", "abi": "serialized", "params": ["i32"], "result": "i32"}]
    abi = {"version": 2, "hostAbi": 2, "dtoSchemaAbi": 1, "exports": exports + (more_exports or [])}
    text = json.dumps({**abi, "transport": {"id": "voyd.std.msgpack", "version": 1}}).encode()
    pieces = {
        "wait": request(0, PLACE),
        "yield": request(1),
        "message": request(2, PLACE),
        "sleep": request(3, 5),
        "done": completion("main", "i32", PLACE),
        "panic": b"the task panicked",
    }
    data = "".join(f'(data ${name} "{wat(piece)}")' for name, piece in pieces.items())
    number = {name: piece.find(struct.pack(">I", PLACE)) for name, piece in pieces.items()}

    def write(name: str, n: str = "") -> str:
        """Write a piece to $out, with a number in it, and give its length."""
        init = f"(memory.init ${name} (local.get $out) (i32.const 0) (i32.const {len(pieces[name])}))"
        at = f"(i32.add (local.get $out) (i32.const {number[name]}))"
        return init + (f"(call $put {at} {n})" if n else "")

    def asks(name: str, step: int, n: str = "") -> str:
        """The result that performs an effect and goes on at a step, with the task of $task."""
        cont = f"(struct.new $cont (i32.const {step}) (local.get $task))"
        return f"{write(name, n)} (return (struct.new $result (i32.const 1) (i32.const {len(pieces[name])}) {cont}))"

    def done(n: str) -> str:
        made = f"(struct.new $result (i32.const 0) (i32.const {len(pieces['done'])}) (ref.null $cont))"
        return f"{write('done', n)} (return {made})"

    def spawn(work: int, how: str = "spawn") -> str:
        return f"(local.set $task (call ${how} (struct.new $work (i32.const {work}))))"

    def when(local: str, n: int, then: str) -> str:
        return f"(if (i32.eq (local.get ${local}) (i32.const {n})) (then {then}))"

    wait, task = "(local.get $task)", "(local.get $task)"
    return f"""(module
  (type $cont (struct (field $step i32) (field $task i32)))
  (type $result (struct (field $status i32) (field $len i32) (field $next (ref null $cont))))
  (type $work (struct (field $n i32)))
  (type $outcome (struct (field $tag i32) (field $value i32) (field $next (ref null $cont))))
  (import "voyd.task" "spawn_attached__twice" (func $spawn (param (ref $work)) (result i32)))
  (import "voyd.task" "spawn_detached__twice" (func $detach (param (ref $work)) (result i32)))
  (import "voyd.task" "cancel" (func $cancel (param i32) (result i32)))
  (import "voyd.task" "take_value" (func $take (param i32) (result (ref null $outcome))))
  (import "voyd.callback" "retain__x" (func $retain (param i32) (result i32)))
  (memory (export "memory") 8)
  (global $panic_ptr (export "__voyd_panic_ptr") (mut i32) (i32.const -1))
  (global $panic_len (export "__voyd_panic_len") (mut i32) (i32.const 0))
  (global $ran (mut i32) (i32.const 0))
  {data}
  (func $put (param $at i32) (param $n i32)
    (i32.store8 (local.get $at) (i32.shr_u (local.get $n) (i32.const 24)))
    (i32.store8 (i32.add (local.get $at) (i32.const 1)) (i32.shr_u (local.get $n) (i32.const 16)))
    (i32.store8 (i32.add (local.get $at) (i32.const 2)) (i32.shr_u (local.get $n) (i32.const 8)))
    (i32.store8 (i32.add (local.get $at) (i32.const 3)) (local.get $n)))
  (func (export "init_effects") (param i32))
  (func (export "effect_status") (param (ref $result)) (result i32) (struct.get $result $status (local.get 0)))
  (func (export "effect_len") (param (ref $result)) (result i32) (struct.get $result $len (local.get 0)))
  (func (export "effect_cont") (param (ref $result)) (result anyref) (struct.get $result $next (local.get 0)))
  (func (export "main_effectful")
    (param $in i32) (param i32) (param $out i32) (param i32) (result (ref $result))
    (local $mode i32) (local $task i32)
    (local.set $mode (i32.load8_u (i32.add (local.get $in) (i32.const 76))))
    (global.set $ran (i32.const 0))
    {when("mode", JOIN, spawn(20) + asks("wait", JOIN, wait))}
    {when("mode", FAIL, spawn(1) + asks("wait", JOIN, wait))}
    {when("mode", CANCEL, spawn(2) + f"(drop (call $cancel {task}))" + asks("wait", JOIN, wait))}
    {when("mode", LEAVE, spawn(2) + done("(i32.const 7)"))}
    {when("mode", UNSEEN, spawn(1) + done("(i32.const 7)"))}
    {when("mode", DETACH, spawn(1, "detach") + done("(i32.const 7)"))}
    {when("mode", YIELD, spawn(20) + asks("yield", YIELD))}
    {when("mode", UNKNOWN, asks("wait", JOIN, "(i32.const 99)"))}
    {when("mode", TWICE, spawn(20) + asks("wait", TWICE, wait))}
    {when("mode", GO_ON, spawn(2) + asks("wait", JOIN, wait))}
    (unreachable))
  (func (export "resume_effectful")
    (param $next (ref $cont)) (param $out i32) (param i32) (param i32) (param i32) (param i32) (result (ref $result))
    (local $step i32) (local $task i32) (local $answer i32)
    (local.set $step (struct.get $cont $step (local.get $next)))
    (local.set $task (struct.get $cont $task (local.get $next)))
    (local.set $answer (i32.load8_u (i32.add (local.get $out) (i32.const 9))))
    {when("step", YIELD, done("(global.get $ran)"))}
    {when("step", 100, done("(i32.add (i32.const 100) (i32.and (local.get $answer) (i32.const 31)))"))}
    {when("answer", 1, asks("message", 100, task))}
    {when("answer", 2, done("(i32.const 2)"))}
    {when("step", TWICE, f"(drop (call $take {task}))")}
    {done(f"(i32.add (i32.const 1) (struct.get $outcome $value (call $take {task})))")}
    (unreachable))
  (func (export "twice") (param $work (ref $work)) (result (ref $outcome))
    (local $n i32)
    (local.set $n (struct.get $work $n (local.get $work)))
    {
        when(
            "n",
            1,
            f'''(memory.init $panic (i32.const 1024) (i32.const 0) (i32.const {len(pieces["panic"])}))
      (global.set $panic_ptr (i32.const 1024)) (global.set $panic_len (i32.const {len(pieces["panic"])}))
      (unreachable)''',
        )
    }
    {
        when(
            "n",
            2,
            '''(return (struct.new $outcome (i32.const 1) (i32.const 0)
      (struct.new $cont (i32.const 50) (i32.const 0))))''',
        )
    }
    (global.set $ran (i32.const 1))
    (struct.new $outcome (i32.const 0) (i32.mul (local.get $n) (i32.const 2)) (ref.null $cont)))
  (func (export "__voyd_outcome_tag") (param (ref $outcome)) (result i32) (struct.get $outcome $tag (local.get 0)))
  (func (export "handle_outcome")
    (param $outcome (ref $outcome)) (param $out i32) (param i32) (param i32) (param i32) (result (ref $result))
    {write("sleep")}
    (struct.new $result (i32.const 1) (i32.const {len(pieces["sleep"])})
      (struct.get $outcome $next (local.get $outcome))))
  (func (export "resume_effectful_raw") (param (ref $cont)) (param i32) (param i32) (result (ref $outcome))
    (global.set $ran (i32.const 1))
    (struct.new $outcome (i32.const 0) (i32.const 7) (ref.null $cont)))
  {functions}
  (@custom "__voyd_effect_table" "{wat(table())}")
  (@custom "voyd.export_abi" "{wat(text)}"))""".encode()


GUEST = module()


class Tasks:
    """A world with the guest, whose standard library has the default handlers."""

    def __init__(self, source: bytes = GUEST, **options: Any) -> None:
        self.world = World(**options)
        self.runtime = self.world.runtime
        self.guest: VoydGuest = load_wasm(self.runtime, source)

    def main(self, mode: int) -> Any:
        run = self.runtime.start(self.guest.entry("main"), mode)
        self.runtime.run_until_idle()
        return run


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        (JOIN, Value(41)),
        (FAIL, Value(100 + len("the task panicked"))),
        (CANCEL, Value(2)),
        (YIELD, Value(1)),
    ],
    ids=["joined", "failed with its message", "cancelled", "a child runs before its owner goes on"],
)
def test_a_task_is_a_child_that_can_be_joined(mode: int, outcome: Value[int]) -> None:
    assert Tasks().main(mode).outcome_now() == outcome


def test_a_task_that_sleeps_is_waited_for_on_the_clock() -> None:
    tasks = Tasks()
    for mode, value in ((GO_ON, 8), (LEAVE, 7)):
        run = tasks.main(mode)
        assert run.outcome_now() is None, "an owner ends after its children"
        tasks.runtime.advance(4)
        assert run.outcome_now() is None
        tasks.runtime.advance(1)
        assert run.outcome_now() == Value(value)


def test_cancelling_an_owner_cancels_its_tasks_and_nobody_else() -> None:
    tasks = Tasks()
    other, run = tasks.main(GO_ON), tasks.main(GO_ON)
    assert run.cancel("enough")
    assert run.outcome_now() == Cancelled("enough")
    assert len(tasks.runtime.runs()) == 2, "the other run and its task"
    tasks.runtime.advance(5)
    assert other.outcome_now() == Value(8)
    assert tasks.runtime.runs() == []


def test_a_failure_that_nobody_looked_at_fails_the_owner() -> None:
    outcome = Tasks().main(UNSEEN).outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, UnobservedFailure)
    assert isinstance(outcome.error.__cause__, GuestTrap)
    assert "the task panicked" in str(outcome.error.__cause__)


def test_a_detached_failure_goes_to_the_failure_sink() -> None:
    tasks = Tasks()
    assert tasks.main(DETACH).outcome_now() == Value(7)
    ((error, run_id),) = tasks.world.failures
    assert "the task panicked" in str(error)
    assert run_id == "run_2"


@pytest.mark.parametrize(
    ("mode", "says"), [(UNKNOWN, "task 99, which this run has not spawned"), (TWICE, "task 2 has no value, or it was")]
)
def test_a_task_that_is_not_there_fails_who_asks_for_it(mode: int, says: str) -> None:
    outcome = Tasks().main(mode).outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, GuestProtocolError)
    assert says in str(outcome.error)


def test_what_tasks_held_is_given_back() -> None:
    tasks = Tasks()
    tasks.main(JOIN)
    memory = tasks.guest.memory_bytes
    for _ in range(50):
        for mode in (JOIN, FAIL, CANCEL, UNSEEN, DETACH, YIELD, TWICE):
            tasks.main(mode)
        tasks.main(LEAVE).cancel()
    assert tasks.guest.memory_bytes == memory
    assert tasks.runtime.runs() == []


async def test_a_durable_run_spawns_no_tasks_and_says_so() -> None:
    log: Log = await memory_log()
    tasks = Tasks(log=log)
    tasks.runtime.register(tasks.guest.entry("main"), "tasks:main")
    await tasks.runtime.start_service()
    run = tasks.runtime.start("tasks:main", JOIN, durable=True, id="a")
    await tasks.runtime.settle()
    assert "a durable run of a guest cannot spawn tasks" in str(run.outcome_now().error)


def test_a_task_may_take_numbers_of_every_kind_beside_its_work() -> None:
    """2**40, 1.5 and 100 come to 1 + 6 + 100, and `main` adds 1."""
    functions = """
      (func (export "mixed")
        (param $work (ref $work)) (param $a i64) (param $b f64) (param $c i32) (result (ref $outcome))
        (struct.new $outcome (i32.const 0)
          (i32.add (local.get $c) (i32.add (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 40)))
            (i32.trunc_f64_s (f64.mul (local.get $b) (f64.const 4)))))
          (ref.null $cont)))"""
    imports = """(import "voyd.task" "spawn_attached__mixed"
        (func $mixed (param (ref $work)) (param i64) (param f64) (param i32) (result i32)))
      (import "voyd.callback" """
    call = "(call $mixed (struct.new $work (i32.const 20)) (i64.const 1099511627776) (f64.const 1.5) (i32.const 100))"
    source = module(functions=functions).decode()
    source = source.replace('(import "voyd.callback" ', imports, 1)
    source = source.replace("(call $spawn (struct.new $work (i32.const 20)))", call)
    assert Tasks(source.encode()).main(JOIN).outcome_now() == Value(1 + 100 + 1 + 6)


# -- the standard library


def test_the_standard_library_has_handlers_that_a_host_can_replace_or_leave_out() -> None:
    tasks = Tasks()
    tasks.guest.handle_named("sleep_millis", lambda effect, ctx: tail({"ok": True}))
    assert tasks.main(GO_ON).outcome_now() == Value(8), "without waiting"
    world = World()
    guest = load_wasm(world.runtime, GUEST, defaults=False)
    world.runtime.start(guest.entry("main"), GO_ON)
    world.runtime.run_until_idle()
    assert "sleep_millis" in str(world.failures[0][0]), "the task fails that needs it"


def perform(tasks: Tasks, index: int, *args: Any) -> Any:
    """What a program gets that performs an operation of the guest itself."""
    effect, op, _, _ = OPERATIONS[index]
    made = tasks.guest.effect_class(effect, op, op)

    def program() -> Any:
        return (yield made(list(args)))

    run = tasks.runtime.start(program)
    tasks.runtime.run_until_idle()
    outcome = run.outcome_now()
    return outcome.value if isinstance(outcome, Value) else outcome


def test_time_random_numbers_and_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    before = perform(tasks, 4)
    tasks.runtime.advance(250)
    assert perform(tasks, 4) - before == 250
    assert perform(tasks, 5) == tasks.world.clock.wall_ms()
    numbers = {perform(tasks, 6) for _ in range(20)}
    assert len(numbers) == 20
    assert all(-(1 << 63) <= number < 1 << 63 for number in numbers)
    filled = perform(tasks, 7, 32)
    assert len(filled) == 32
    assert all(0 <= byte < 256 for byte in filled)
    assert len(perform(tasks, 7, 10_000_000)) < tasks.guest.memory_bytes, "as many as fit a message"
    with caplog.at_level(logging.DEBUG, "mainspring.guest"):
        fields = [{"key": "n", "value": 5}]
        assert perform(tasks, 8, {"level": "warn", "message": "careful", "fields": fields}) is None
        assert perform(tasks, 8, {"level": "other", "message": "fine", "fields": None}) is None
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "careful n=5"),
        ("INFO", "fine"),
    ]


# -- exports without effects


def test_a_pure_export_whose_values_are_serialized_runs_in_one_step() -> None:
    answer = completion("greet", "string", "hello")
    functions = f"""(data $hello "{wat(answer)}")
      (func (export "greet__wrapped") (param i32 i32 i32 i32) (result i32)
        (if (i32.lt_u (local.get 1) (i32.const 80)) (then (return (i32.const -1))))
        (memory.init $hello (local.get 2) (i32.const 0) (i32.const {len(answer)})) (i32.const {len(answer)}))
      (func (export "spawner") (result i32) (call $spawn (struct.new $work (i32.const 3))))"""
    exports = [
        {
            "name": "greet",
            "abi": "serialized",
            "wrapperName": "greet__wrapped",
            "params": ["string"],
            "result": "string",
        },
        {"name": "absent", "abi": "serialized", "result": "string"},
        {"name": "spawner", "abi": "direct", "result": "i32"},
    ]
    tasks = Tasks(module(exports, functions))

    def call(name: str, *args: Any) -> Any:
        run = tasks.runtime.start(tasks.guest.entry(name), *args)
        tasks.runtime.run_until_idle()
        return run.outcome_now()

    assert call("greet", "ada, who has a long name") == Value("hello")
    assert "larger buffer_bytes" in str(call("greet", "").error)
    assert "declares the export absent and has no function absent" in str(call("absent").error)
    assert "called voyd.task.spawn_attached__twice outside of a run" in str(call("spawner").error)
