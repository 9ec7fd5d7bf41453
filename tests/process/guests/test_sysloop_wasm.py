"""WebAssembly guests: the example in WAT end to end, and the limits that stop a guest gone wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("wasmtime", reason="the extra mainspring[wasm] is not installed")

from mainspring.errors import MissingExtra
from mainspring.guests import Guest
from mainspring.guests.wasm import GuestFailed, GuestLimit, Limits, run_module
from tests.support.guests import Host

EXAMPLE = ROOT / "examples" / "sysloop_guest.wat"
MEMORY = '(memory (export "memory") 1)'


def module(body: str, imports: str = "", memory: str = MEMORY) -> bytes:
    return f"(module {imports} {memory} {body})".encode()


def main(code: str) -> str:
    return f'(func (export "main") (param i32 i32) (result i32) {code})'


def test_the_example_watches_a_pipe_arms_a_timer_and_polls(guest: Guest, host: Host) -> None:
    reader, writer = host.pipe()
    output, guest_output = host.pipe()
    guest.reserve(1, guest_output)
    assert guest.attach(reader) == 3

    def speak() -> None:
        writer.write(b"hello\n")
        writer.close()

    host.later(0.7, speak)
    assert run_module(EXAMPLE, guest) == 0
    assert output.read(100) == b"tick\nhello\n"


def test_the_command_runs_a_guest_on_its_standard_streams(tmp_path: Path) -> None:
    script = "import sys; from mainspring.cli.program.guest import guest; import typer; typer.run(guest)"
    command = [sys.executable, "-c", script, str(EXAMPLE), "--attach", "0"]
    done = subprocess.run(command, input=b"through the pipe\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.replace(b"tick\n", b"") == b"through the pipe\n"


def test_a_path_can_be_attached_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a file\n")
    script = "import sys; from mainspring.cli.program.guest import guest; import typer; typer.run(guest)"
    command = [sys.executable, "-c", script, str(EXAMPLE), "--attach", str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"from a file\n")


def test_the_exit_code_is_what_main_gives(guest: Guest) -> None:
    assert run_module(module(main("(i32.const 7)")), guest) == 7
    assert run_module(module('(func (export "main"))'), guest) == 0
    assert run_module(module('(func (export "_start"))'), guest) == 0


def test_a_guest_that_computes_for_ever_is_stopped(guest: Guest) -> None:
    with pytest.raises(GuestLimit) as caught:
        run_module(module(main("(loop br 0) (i32.const 0)")), guest, Limits(fuel=1_000_000))
    assert "--max-fuel" in caught.value.remedy


def test_calls_to_the_host_are_not_free(guest: Guest) -> None:
    version = '(import "env" "zi_abi_version" (func $v (result i32)))'
    with pytest.raises(GuestLimit):
        run_module(module(main("(loop (drop (call $v)) (br 0)) (i32.const 0)"), version), guest, Limits(fuel=1_000_000))


WAITING = """
    (import "env" "zi_cap_open" (func $open (param i64) (result i32)))
    (import "env" "zi_write" (func $write (param i32 i64 i32) (result i32)))
    (import "env" "zi_read" (func $read (param i32 i64 i32) (result i32)))
"""
DATA = r"""
    (data (i32.const 256) "sysloop")
    (data (i32.const 272) "\00\01\00\00\00\00\00\00\03\00\00\00\03\01\00\00\00\00\00\00\04\00\00\00")
    (data (i32.const 512) "ZCL1\01\00\05\00\03\00\00\00\00\00\00\00\00\00\00\00\08\00\00\00\08\00\00\00")
"""


def waits(timeout: str, times: int) -> bytes:
    """A guest that polls `times` times with nothing to wait for but the timeout."""
    return module(
        DATA
        + f'(data (i32.const 540) "{timeout}")'
        + f"""(func (export "main") (local $h i32) (local $n i32)
            (local.set $h (call $open (i64.const 272)))
            (loop
                (drop (call $write (local.get $h) (i64.const 512) (i32.const 32)))
                (drop (call $read (local.get $h) (i64.const 4096) (i32.const 100)))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $n) (i32.const {times})))))""",
        WAITING,
    )


def test_waiting_fills_the_fuel_up_again(guest: Guest) -> None:
    limits = Limits(fuel=100_000)  # five calls to the host
    assert run_module(waits(r"\01\00\00\00", 20), guest, limits) == 0
    with pytest.raises(GuestLimit):
        run_module(waits(r"\00\00\00\00", 20), guest, limits)


def test_the_wall_limit_ends_a_wait_and_a_computation(guest: Guest) -> None:
    for wasm in (waits(r"\ff\ff\ff\ff", 1000), module(main("(loop br 0) (i32.const 0)"))):
        with pytest.raises(GuestLimit) as caught:
            run_module(wasm, guest, Limits(fuel=2**60, wall_ms=50))
        assert "--wall-limit-ms" in caught.value.remedy


def test_memory_is_limited(guest: Guest) -> None:
    limits = Limits(memory_bytes=4 * 65536)
    assert run_module(module(main("(memory.grow (i32.const 3))")), guest, limits) == 1
    assert run_module(module(main("(memory.grow (i32.const 4))")), guest, limits) == 255
    alloc = '(import "env" "zi_alloc" (func $a (param i32) (result i64)))'
    refused = main("(i32.eqz (i32.wrap_i64 (call $a (i32.const 300000))))")
    assert run_module(module(refused, alloc), guest, limits) == 1
    with pytest.raises(GuestFailed):
        run_module(module(main("(i32.const 0)"), memory='(memory (export "memory") 5)'), guest, limits)


@pytest.mark.parametrize(
    ("wasm", "what"),
    [
        (b"\xff\xfe\xfd", "neither a WebAssembly module nor its text form"),
        (b"\0asm....", "cannot be run"),
        (b"(module", "cannot be run"),
        (module(""), "neither main nor _start"),
        (module(main("(i32.const 0)"), memory=""), "exports no memory"),
        (module('(func (export "main") (param i32))'), "takes 1 parameters"),
        (module(main("(unreachable)")), "unreachable"),
        (module(main("(i32.load (i32.const 70000))")), "out of bounds"),
        (module(main("(call $n) (i32.const 0)"), '(import "env" "zi_nothing" (func $n))'), "called env.zi_nothing"),
        (module(main("(call $n) (i32.const 0)"), '(import "wasi" "zi_end" (func $n))'), "called wasi.zi_end"),
        (module(main("(i32.const 0)"), '(import "env" "zi_end" (func (param i64)))'), "imports env.zi_end as .i64."),
        (module(main("(i32.const 0)"), '(import "env" "table" (global i32))'), "env.table, which is no function"),
        (module('(start $v) (func (export "main"))', '(import "env" "zi_abi_version" (func $v (result i32)))'), "run"),
    ],
)
def test_a_bad_module_is_an_error_that_says_what(guest: Guest, wasm: bytes, what: str) -> None:
    with pytest.raises(GuestFailed, match=what):
        run_module(wasm, guest)


LIBRARY = """
    (import "env" "zi_abi_features" (func (result i64)))
    (import "env" "zi_argc" (func (result i32)))
    (import "env" "zi_argv_copy" (func (param i32 i64 i32) (result i32)))
    (import "env" "zi_fs_open_path" (func (param i32 i64 i32) (result i32)))
    (import "env" "zi_hop_alloc" (func (param i32 i32 i32) (result i64)))
    (import "env" "zi_time_now_ms_u32" (func $now (result i32)))
    (import "env" "zi_write" (func $write (param i32 i64 i32) (result i32)))
    (import "env" "zi_write" (func $write_again (param i32 i64 i32) (result i32)))
"""  # compilers import their whole library


def test_a_module_may_import_what_it_does_not_call(guest: Guest, host: Host) -> None:
    output, guest_output = host.pipe()
    guest.reserve(1, guest_output)
    text = '(data (i32.const 100) "hello")'
    body = main("(drop (call $write (i32.const 1) (i64.const 100) (i32.const 5))) (i32.const 3)")
    assert run_module(module(text + body, LIBRARY), guest) == 3
    assert output.read(100) == b"hello"


def test_calling_what_no_host_offers_names_the_function_and_what_is_offered(tmp_path: Path) -> None:
    file = tmp_path / "clock.wat"
    file.write_bytes(module(main("(call $now)"), LIBRARY))
    command = [sys.executable, "-m", "mainspring", "guest", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "the guest called env.zi_time_now_ms_u32, which this host does not offer" in done.stderr
    assert "zi_cap_open" in done.stderr


def test_telemetry_reaches_the_host(guest: Guest) -> None:
    heard: list[tuple[str, str]] = []
    say = '(import "env" "zi_telemetry" (func $say (param i64 i32 i64 i32) (result i32)))'
    text = '(data (i32.const 100) "topicmessage")'
    body = main("(call $say (i64.const 100) (i32.const 5) (i64.const 105) (i32.const 7))")
    assert run_module(module(text + body, say), guest, telemetry=lambda *words: heard.append(words)) == 0
    assert heard == [("topic", "message")]


def test_without_wasmtime_the_remedy_is_named(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(MissingExtra) as caught:
        run_module(EXAMPLE, guest)
    assert "mainspring[wasm]" in caught.value.remedy


def test_a_missing_file_is_named(guest: Guest, tmp_path: Path) -> None:
    with pytest.raises(GuestFailed, match="cannot read the module"):
        run_module(tmp_path / "nothing.wasm", guest)
