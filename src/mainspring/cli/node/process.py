"""A node as a process: the host loop, the first line on standard output, the signals, the exit code.

The node itself knows nothing of processes; everything that only makes sense once per process is here. A supervisor or
a script reads one line of JSON on standard output; a person whose terminal that is gets a sentence instead. Why a boot
failed is in that line, too, and on standard error for whoever keeps that as a log; where both end on one screen it is
said once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from mainspring.cli.support.stopping import stop_signals, unless_stopped
from mainspring.errors import MainspringError, plain_lines
from mainspring.loop import MonotonicClock, new_event_loop
from mainspring.message import Message, Metadata, counted_ids, encode_data, encode_line
from mainspring.node import Node
from mainspring.settings import Settings, without_secrets
from mainspring.telemetry import configure_logging

logger: logging.Logger = logging.getLogger("mainspring")


def say(line: bytes) -> None:
    """One line on standard output, at once."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


def in_words(booted: Message, settings: Settings, program: str | None) -> str:
    """The boot message for a person."""
    addresses = [each for each in booted.data["adapters"] if each.startswith("http")]
    place = f"sqlite in {settings.data}" if settings.engine == "sqlite" else without_secrets(settings.engine)
    where = f"{addresses[0]} (the dashboard is there, too)" if addresses else "unix sockets"
    return f"{program or 'a node'} is ready at {where}; log: {place}. Ctrl-C stops it."


def boot_failed(error: MainspringError) -> bytes:
    data: dict[str, object] = {"code": 500, "message": str(error), "reason": error.code}
    if phase := getattr(error, "phase", None):
        data["phase"] = phase
    metadata = Metadata(counted_ids()(), MonotonicClock().wall_ms(), causation="boot")
    return encode_line(Message("error", "Sys.BootFailed", encode_data(data), metadata))


def run(read_settings: Callable[[], Settings], program: str | None, *, as_json: bool = False) -> int:
    """Boot, serve until a signal or Syscall.Shutdown, drain.

    The first line is JSON unless it is shown to a person; with `as_json` it is in any case. The exit code is 0 after an
    orderly stop and 1 when boot failed.
    """
    in_json = as_json or not sys.stdout.isatty()
    try:
        settings = read_settings()
        configure_logging(settings)
        with asyncio.Runner(loop_factory=new_event_loop if settings.uvloop else None) as runner:
            return runner.run(_serve(settings, program, in_json))
    except MainspringError as error:
        phase = getattr(error, "phase", "")  # for programs; a person wants the reason
        sentence = f"mainspring: not started: {plain_lines(error).removeprefix(f'boot failed in phase {phase}: ')}"
        if in_json:
            say(boot_failed(error))
        elif not sys.stderr.isatty():
            say(sentence.encode())
        sys.stderr.write(f"{sentence}\n")
        return 1


async def _serve(settings: Settings, program: str | None, in_json: bool) -> int:
    node = Node(settings, program)
    stopping = stop_signals(logger)
    # Boot may wait for an engine; a person who wants to stop need not.
    booted = await unless_stopped(stopping, asyncio.ensure_future(node.boot(_say_ready if in_json else _settle)))
    if booted is None:
        return 0
    if not in_json:
        say(in_words(booted, settings, program).encode())
    elif sys.stderr.isatty():
        sys.stderr.write(in_words(booted, settings, program) + "\n")
    node.on_shutdown(stopping.set)
    await stopping.wait()
    await node.drain()
    if node.failure is not None:
        sys.stderr.write(f"mainspring: {plain_lines(node.failure)}\n")
    return 0 if node.failure is None else 1


def _settle(_: Message) -> None:
    # What boot made stays for good: looking through it for garbage again and again would only cost pauses.
    gc.freeze()
    gc.enable()


def _say_ready(booted: Message) -> None:
    _settle(booted)
    say(encode_line(booted))


INTERVAL_S: Final = 0.3
STOP_S: Final = 20.0
_LEFT_OUT: Final = {"__pycache__", "node_modules", "venv", "data"}


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every Python and TOML file below the folder with its time and size."""
    found = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _LEFT_OUT]
        for name in names:
            if name.endswith((".py", ".toml")):
                path = os.path.join(root, name)
                with suppress(OSError):  # an editor replaced it between the two looks
                    state = os.stat(path)
                    found[path] = (state.st_mtime_ns, state.st_size)
    return found


def run_again_and_again(command: list[str], folder: Path) -> int:
    """Run the command; run it again whenever a file of the program changes; end with a signal.

    The node runs in a process of its own, started anew, so that no module keeps its old self. It is stopped in order,
    as by Ctrl-C, before the next one starts. A program that cannot be imported leaves the watch running: the next
    change is the next try.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    def start() -> subprocess.Popen[bytes]:
        """In a session of its own: Ctrl-C reaches the watch alone, which passes on one signal and not two."""
        return subprocess.Popen(command, start_new_session=True)

    seen = snapshot(folder)
    child = start()
    while not stopping.wait(INTERVAL_S):
        found = snapshot(folder)
        if found == seen:
            continue
        changed = sorted(Path(path).name for path in seen.keys() | found.keys() if seen.get(path) != found.get(path))
        sys.stderr.write(f"mainspring: {', '.join(changed)} changed; starting again\n")
        seen = found
        _stop(child)
        child = start()
    return _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        return child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
