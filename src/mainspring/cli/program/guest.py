"""`mainspring guest`: runs a WebAssembly guest with `sys/loop`, `sys/info` and `event/bus`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.support.output import CommandFailed, compact, note, safe
from mainspring.guests import Guest, Limits, run_module


def guest(
    module: Annotated[Path, typer.Argument(metavar="FILE", help="A module: .wasm, or its text form .wat.")],
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="FD|PATH", help="Something to watch: an inherited descriptor or a path. Handles 3, 4 ..."),
    ] = None,
    max_memory_mb: Annotated[int, typer.Option(min=1, max=4096, help="Memory the guest may have, in MiB.")] = 64,
    max_fuel: Annotated[
        int, typer.Option(min=1, max=2**63, help="Instructions it may take between two waits, about.")
    ] = 5_000_000_000,
    wall_limit_ms: Annotated[
        int, typer.Option(min=0, help="Longest run in ms, waiting included. 0: as long as it likes.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="What it reports, on standard error, as JSON lines.")] = False,
) -> None:
    """Run a WebAssembly guest; its exit code is the command's.

    Handles 0, 1 and 2 are standard input, output and error; they can be read and written, not watched. To let a guest
    watch its standard input, attach it once more: --attach 0.
    """
    limits = Limits(memory_bytes=max_memory_mb << 20, fuel=max_fuel, wall_ms=wall_limit_ms or None)
    with Guest() as hosted:
        for number in range(3):
            hosted.reserve(number, number)
        for name in attach or []:
            _attach(hosted, name)

        def report(topic: str, text: str) -> None:
            note(compact({"topic": topic, "text": text}) if as_json else safe(f"{topic}: {text}"))

        code = run_module(module, hosted, limits, report)
    raise typer.Exit(code)


def _attach(hosted: Guest, name: str) -> None:
    if name.isdecimal():
        hosted.attach(int(name))
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CommandFailed(f"cannot attach {name}: {error}", remedy="give a path that can be read") from error
    hosted.adopt(descriptor)
