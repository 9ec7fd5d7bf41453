"""`mainspring send`, `describe`, `trace` and `run`: the kernel from a terminal.

The first three talk to a running node over its NDJSON socket; `run` boots a kernel of its own, feeds it standard input
and ends. Data goes to standard output, complaints to standard error; an error answer is exit code 1.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.loading import load_all
from mainspring.errors import MainspringError
from mainspring.kernel.lineage import Node, drawn
from mainspring.loop import MonotonicClock
from mainspring.message import compact, counted_ids
from mainspring.wire.unix_socket import place_to_ask

SocketOption = Annotated[Path | None, typer.Option("--socket", help="The node's NDJSON socket.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The answer as it came: one JSON line.")]
_PATIENCE_MS: Final = 5_000  # beyond the request's own timeout, for a node that does not answer at all


class NoNode(MainspringError):
    """No node answers on the socket."""

    code = "no_node"


class BadData(MainspringError):
    """What was given on the command line is not JSON."""

    code = "bad_data"


class Wire:
    """One connection to a node, for one command after the other."""

    def __init__(self, path: Path | None, timeout_ms: int = 30_000) -> None:
        self.path: Path = path or _default_socket()
        self._ids = counted_ids()
        self._clock = MonotonicClock()
        self._timeout_ms = timeout_ms
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout((timeout_ms + _PATIENCE_MS) / 1000)
        try:
            self._socket.connect(str(self.path))
        except OSError as error:
            raise NoNode(
                f"no node listens on {self.path}: {error.strerror or error}",
                remedy="start one with `mainspring serve`, or say where it is with --socket",
            ) from None
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, kind: str, type: str, data: Any, **metadata: Any) -> str:
        """Send a message; its id."""
        given = {"id": self._ids(), "timestamp": self._clock.wall_ms(), "timeout": self._timeout_ms, **metadata}
        message = {"kind": kind, "type": type, "data": data, "metadata": given}
        self._socket.sendall(msgspec.json.encode(message) + b"\n")
        return str(given["id"])

    def answer(self) -> dict[str, Any]:
        """The next line."""
        try:
            line = self._lines.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise NoNode("the node closed the connection without an answer", remedy="look at the node's log")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, kind: str, type: str, data: Any, **metadata: Any) -> dict[str, Any]:
        self.send(kind, type, data, **metadata)
        return self.answer()


def send(
    kind: Annotated[str, typer.Argument(help="command, query or event.")],
    type: Annotated[str, typer.Argument(help="Two PascalCase segments, like Memory.Get.")],
    data: Annotated[str, typer.Argument(help="JSON; `-` reads it from standard input.")] = "{}",
    socket_path: SocketOption = None,
    timeout_ms: Annotated[int, typer.Option(min=1, help="How long to wait for the outcome.")] = 30_000,
    correlation: Annotated[str | None, typer.Option(help="Groups this message with others.")] = None,
    id: Annotated[str | None, typer.Option(help="The message's id; one is made otherwise.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message to a running node and show what comes back."""
    text = sys.stdin.read() if data == "-" else data
    try:
        given = msgspec.json.decode(compact(text.encode()), type=msgspec.Raw)  # goes as it is: no number changes
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadData(f"DATA is not JSON: {error}", remedy='quote it for the shell: \'{"key": "/a"}\'') from None
    extra = {name: value for name, value in (("correlation", correlation), ("id", id)) if value is not None}
    wire = Wire(socket_path, timeout_ms)
    ident = wire.send(kind, type, given, **extra)
    if kind == "event":
        _confirm_event(wire, ident, as_json)
        return
    _show(wire.answer(), as_json)


def describe(
    type: Annotated[str | None, typer.Argument(help="A message type; without one, all are listed.")] = None,
    socket_path: SocketOption = None,
    as_json: JsonOption = False,
    tools: Annotated[bool, typer.Option("--tools", help="As JSON tool definitions for language models.")] = False,
) -> None:
    """Show what a node handles: every type, or one type's description and schemas."""
    wire = Wire(socket_path)
    if tools:
        _show_tools(wire, type)
        return
    if type is None:
        for entry in listed(wire):
            if as_json:
                typer.echo(json.dumps(entry))
            else:
                told = f"on node {entry['node']}" if "node" in entry else entry["description"]
                typer.echo(f"{entry['kind']:8} {entry['type']:32} {told}")
        return
    answer = wire.ask("query", "Syscall.Describe", {"name": type})
    if as_json or answer["kind"] == "error":
        _show(answer, as_json)
        return
    found = answer["data"]
    typer.echo(f"{found['kind']} {found['name']}\n{found['description']}")
    for name in ("input", "output"):
        typer.echo(f"\n{name}:\n{json.dumps(found[name], indent=2, ensure_ascii=False)}")


def trace(
    id: Annotated[str, typer.Argument(help="The id of a message that passed lately.")],
    socket_path: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what caused a message and what followed from it, as a tree."""
    answer = Wire(socket_path).ask("query", "Syscall.Trace", {"id": id})
    if as_json or answer["kind"] == "error":
        _show(answer, as_json)
        return
    typer.echo(drawn(msgspec.convert(answer["data"]["messages"], list[Node]), id))
    if answer["data"]["truncated"]:
        typer.echo("... (more followed; the tree does not fit one answer)")


def run(
    program: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The program whose handlers answer.")],
    data: Annotated[
        Path | None, typer.Option(help="Directory of what must survive; without one, nothing does.")
    ] = None,
) -> None:
    """Answer the messages on standard input, one JSON line each, and end when nothing is left to do.

    Exit code 0 when every line succeeded, 1 when one failed.
    """
    failed = asyncio.run(_run(program, data))
    if failed:
        typer.echo(f"mainspring: {failed} of the lines failed", err=True)
        raise typer.Exit(1)


async def _run(program: str, data: Path | None) -> int:
    from mainspring.log import Log, open_engine
    from mainspring.node import load_program
    from mainspring.wire.batch import run_batch

    app = load_program(program)
    assert app is not None
    source = _Input()
    clock = MonotonicClock()
    log = Log(open_engine("memory" if data is None else "sqlite", "" if data is None else str(data), clock))
    await log.open()
    try:
        async with app.kernel(clock=clock, log=log, data_dir=data) as kernel:
            return await run_batch(kernel, source.read, _write_out, end_input=source.end)
    finally:
        await log.close()


class _Input:
    """Standard input, as far as it is there: a pipe that stays open is answered line by line."""

    def __init__(self) -> None:
        self._ended, self._end = os.pipe()

    def read(self, count: int) -> bytes:
        """What has come; nothing at the end of the input, or after `end`."""
        ready, _, _ = select.select([sys.stdin.fileno(), self._ended], [], [])
        return b"" if self._ended in ready else os.read(sys.stdin.fileno(), count)

    def end(self) -> None:
        """Read no further, also in a thread that waits for more."""
        os.write(self._end, b".")


def _write_out(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _default_socket() -> Path:
    settings = load_all().settings
    return place_to_ask(settings.kernel_socket, settings.data, "kernel.sock")


def listed(wire: Wire) -> Iterator[dict[str, Any]]:
    """Every type, page by page: all of them seldom fit one answer."""
    for page in itertools.count():
        answer = wire.ask("query", "Syscall.List", {"page": page})
        if answer["kind"] == "error":
            _show(answer, False)
        yield from answer["data"]["types"]
        if page + 1 >= answer["data"]["pages"]:
            return


def _show_tools(wire: Wire, type: str | None) -> None:
    from mainspring.cli.tools import tool_from

    found = []
    for name in [entry["type"] for entry in listed(wire)] if type is None else [type]:
        answer = wire.ask("query", "Syscall.Describe", {"name": name})
        if answer["kind"] == "error":
            _show(answer, False)
        found.append(tool_from(name, answer["data"]).definition())
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


def _confirm_event(wire: Wire, ident: str, as_json: bool) -> None:
    """An event gets no answer; a ping behind it shows that it was taken, or what was wrong with it."""
    ping = wire.send("query", "Syscall.Ping", {"payload": None})
    while (answer := wire.answer())["metadata"].get("causation") != ping:
        _show(answer, as_json)
    if not as_json:
        typer.echo(f"sent {ident}")


def _show(answer: dict[str, Any], as_json: bool) -> None:
    """Print an answer; an error ends the command with exit code 1."""
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
    elif answer["kind"] == "error":
        data = answer["data"]
        typer.echo(f"{answer['type']} {data['code']}: {data['message']}", err=True)
        if data.get("remedy"):
            typer.echo(f"  {data['remedy']}", err=True)
    else:
        typer.echo(json.dumps(answer["data"], indent=2, ensure_ascii=False))
    if answer["kind"] == "error":
        raise typer.Exit(1)
