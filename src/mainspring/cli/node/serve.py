"""`mainspring serve`: run a node until it is told to stop."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.node.process import run, run_again_and_again
from mainspring.cli.node.settings import ConfigOption
from mainspring.settings import load_all


@dataclass(frozen=True)
class ServeOptions:
    """Settings that have a flag; None is what nobody mentioned."""

    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None
    port: Annotated[int | None, typer.Option(help="Port of WebSocket and HTTP.  [default: 7070]")] = None
    data: Annotated[Path | None, typer.Option(help="Directory of what must survive a restart.  [default: ./data]")] = (
        None
    )
    engine: Annotated[
        str | None,
        typer.Option(help="sqlite, memory, postgresql://..., nats://... or mongodb://...  [default: sqlite]"),
    ] = None
    node: Annotated[
        str | None,
        typer.Option(help="Name of this node among those on one log.  [default: from host and data directory]"),
    ] = None
    wait_for_engine: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="How long to wait for the engine's server.  [default: 0]")
    ] = None
    require_durable: Annotated[
        bool | None,
        typer.Option("--require-durable", help="Refuse an engine whose acknowledgements could still be lost."),
    ] = None
    kernel_socket: Annotated[
        Path | None,
        typer.Option(help="Path of the socket for messages (NDJSON).  [default: kernel.sock in the data directory]"),
    ] = None
    kernel_tcp: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Messages (NDJSON) over TCP, too.  [default: only on the socket]"),
    ] = None
    loop_socket: Annotated[
        Path | None, typer.Option(help="Path of the socket of sys/loop.  [default: loop.sock in the data directory]")
    ] = None
    run_tasks: Annotated[
        bool | None, typer.Option("--tasks/--no-tasks", help="Run the program's tasks here, or leave them to workers.")
    ] = None
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.  [default: info]")] = None
    log_format: Annotated[str | None, typer.Option(help="text or json.  [default: text]")] = None


def serve(
    program: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="The program to run; without one, the bus alone.")
    ] = None,
    *,
    options: ServeOptions,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a file of the program changes. For development.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The first line as JSON, also at a terminal.")] = False,
    config: ConfigOption = None,
) -> None:
    """Run a node. WebSocket, HTTP and the dashboard on one port, messages and sys/loop on unix sockets.

    When every socket listens, a terminal is told where, in a sentence; whatever else reads standard output gets
    Sys.BootComplete as one JSON line. Logs go to standard error. A node that cannot start says why, as Sys.BootFailed
    where it is not a terminal, and ends with exit code 1. SIGTERM or Ctrl-C stops in order; a second one ends at once.
    """
    if reload:
        # The same command without the flag, in a process that is started again after every change.
        arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
        raise typer.Exit(run_again_and_again([sys.executable, "-m", "mainspring", *arguments], Path.cwd()))
    flags = {**asdict(options), "require_durable": options.require_durable or None}
    raise typer.Exit(run(lambda: load_all(config, **flags).settings, program, as_json=as_json))
