"""`mainspring send`, `describe`, `trace`, `actors`, `dead-messages` and `run`: the kernel from a terminal.

All but the last talk to a running node, over its unix socket or at its address; `run` boots a kernel of its own, feeds
it standard input and ends. Data goes to standard output, complaints to standard error; an error answer is exit code 1.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from mainspring.cli.support.messages import TIMEOUT_MS, Wire, WireOptions
from mainspring.cli.support.node_options import ChosenIds, YesOption, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import (
    CommandFailed,
    SpeaksJsonOption,
    json_text,
    note,
    safe,
    say,
    say_done,
    say_json,
)
from mainspring.errors import plain_lines
from mainspring.json_text import JsonRefused, check_json
from mainspring.kernel import CausationNode, draw_tree
from mainspring.loop import MonotonicClock
from mainspring.message import MAX_DEPTH, compact

# What every node has: listed after what its program brings, which is what people look for.
BUILT_IN: Final = frozenset({"Syscall", "Timer", "Memory", "Event", "Bus", "Run", "Beat"})

JsonOption = Annotated[bool, typer.Option("--json", help="The answer as it came: one JSON line.")]


def send(
    kind: Annotated[Literal["command", "query", "event"], typer.Argument(help="What kind of message.")],
    type: Annotated[str, typer.Argument(help="The type, like Memory.Get; `mainspring describe` lists all.")],
    data: Annotated[str, typer.Argument(help="JSON; `-` reads it from standard input.")] = "{}",
    *,
    node: WireOptions,
    timeout_ms: Annotated[
        int, typer.Option(min=1, metavar="MS", help="How long to wait for the outcome, in milliseconds.")
    ] = TIMEOUT_MS,
    correlation: Annotated[str | None, typer.Option(help="Groups this message with others.")] = None,
    id: Annotated[str | None, typer.Option(help="The message's id; one is made otherwise.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message to a running node and show what comes back.

    Events need the node's socket. At an address of a node with tokens a query needs a token, a command one with the
    scope admin. A durable command with --id may be sent again: it is carried out once.

    Examples: `send query Memory.Get '{"key": "/a"}'`, `send command Order.Place - < order.json`.
    """
    text = sys.stdin.read() if data == "-" else data
    try:
        check_json(text.encode(errors="surrogatepass"), "DATA", levels=MAX_DEPTH)
    except JsonRefused as error:
        raise CommandFailed(error.message, remedy='quote it for the shell: \'{"key": "/a"}\'') from None
    given = msgspec.Raw(compact(text.encode()))  # goes as it is: no number changes
    extra = {name: value for name, value in (("correlation", correlation), ("id", id)) if value is not None}
    with node.open(timeout_ms) as wire:
        answer = wire.tell(type, given, **extra) if kind == "event" else wire.ask(kind, type, given, **extra)
    if isinstance(answer, dict):
        _show(answer, as_json)
    elif not as_json:
        say(f"sent {answer}")


def describe(
    type: Annotated[str | None, typer.Argument(help="A message type; without one, all are listed.")] = None,
    *,
    node: WireOptions,
    as_json: JsonOption = False,
    tools: Annotated[bool, typer.Option("--tools", help="As JSON tool definitions for language models.")] = False,
) -> None:
    """Show what a node handles. Every message type, or one type's description and schemas.

    Examples: `describe`, `describe Memory.Get`, `describe --tools > tools.json`.
    """
    with node.open() as wire:
        if tools:
            _show_tools(wire, type, as_json)
        elif type is None:
            _show_types(wire, as_json)
        else:
            _show_type(described(wire, type), as_json)


def described(wire: Wire, type: str) -> dict[str, Any]:
    """What the node says about a type; of one it does not know, how a person finds those it does."""
    answer = wire.ask("query", "Syscall.Describe", {"name": type})
    if answer["kind"] == "error" and answer["data"]["code"] == 404:
        answer["data"]["remedy"] = "`mainspring describe` lists all"
    return answer


def _show_types(wire: Wire, as_json: bool) -> None:
    for entry in sorted(listed(wire), key=lambda entry: entry["type"].partition(".")[0] in BUILT_IN):
        if as_json:
            say_json(entry)
        else:
            told = f"on node {entry['node']}" if "node" in entry else entry["description"]
            say(f"{entry['kind']:8} {safe(entry['type']):32} {safe(told)}")


def _show_type(answer: dict[str, Any], as_json: bool) -> None:
    if as_json or answer["kind"] == "error":
        _show(answer, as_json)
        return
    found = answer["data"]
    say(f"{found['kind']} {found['name']}\n{found['description']}")
    for name in ("input", "output"):
        say(f"\n{name}:\n{json_text(found[name], 2)}")


def trace(
    id: Annotated[str, typer.Argument(help="The id of a message that passed lately.")],
    *,
    node: WireOptions,
    as_json: JsonOption = False,
) -> None:
    """Show what caused a message and what followed from it, as a tree."""
    with node.open() as wire:
        answer = wire.ask("query", "Syscall.Trace", {"id": id})
    if as_json or answer["kind"] == "error":
        _show(answer, as_json)
        return
    say(draw_tree(msgspec.convert(answer["data"]["messages"], list[CausationNode]), id))
    if answer["data"]["truncated"]:
        say("... (more followed; the tree does not fit one answer)")


actors: typer.Typer = Commands("List capabilities; start one again.")


@actors.command("list")
def list_actors(*, node: WireOptions, as_json: JsonOption = False) -> None:
    """Every capability: its state, restarts, and open messages."""
    found = node.ask("Syscall.Actors", {}, "query")["actors"]
    for each in sorted(found, key=lambda each: each["id"] in BUILT_IN):
        if as_json:
            say_json(each)
        else:
            counts = f"{each['open']} open, {each['waiting']} waiting, {each['restarts']} restarts"
            say(f"{each['id']:24} {each['state']:11} {counts}")


@actors.command()
def restart(
    capability: Annotated[str, typer.Argument(help="The capability, like Order.")],
    *,
    node: WireOptions,
    as_json: JsonOption = False,
) -> None:
    """Start a capability again that failed too often. Needs the scope admin.

    Example: `actors restart Order`.
    """
    found = node.ask("Syscall.Restart", {"capability": capability})
    if as_json:
        say_json(found)
    else:
        say(f"{capability} is started again" if found["restarted"] else f"{capability} was running")


dead_messages: typer.Typer = Commands("List, send again and drop messages that failed.")


@dead_messages.command("list")
def list_dead_messages(*, node: WireOptions, as_json: JsonOption = False) -> None:
    """List messages that failed and reached nobody, or were given up. Oldest first."""
    after, more = "", True
    while more:
        found = node.ask("Syscall.DeadLetters", {"after": after}, "query")
        for letter in found["letters"]:
            if as_json:
                say_json(letter)
            else:
                sent = f"{letter['message']['kind']} {letter['message']['type']}"
                say(safe(f"{letter['id']}  {sent:32} {letter['reason']:14} {letter['error']}: {letter['text']}"))
        more = found["more"] and bool(found["letters"])
        after = found["letters"][-1]["id"] if more else ""


@dead_messages.command()
def redrive(*, chosen: ChosenIds, node: WireOptions, as_json: JsonOption = False) -> None:
    """Send dead messages again, with all their attempts.

    Example: `dead-messages redrive --all`.
    """
    found = node.ask("Syscall.Redrive", chosen.wanted())
    say_done(found, as_json, f"sent {found['count']} again")


@dead_messages.command()
def drop(*, chosen: ChosenIds, yes: YesOption = False, node: WireOptions, as_json: JsonOption = False) -> None:
    """Drop dead messages. Nobody gets them any more."""
    wanted = chosen.wanted()
    confirm(f"Drop {chosen} dead messages for good?", yes)
    found = node.ask("Syscall.DropDeadLetters", wanted)
    say_done(found, as_json, f"dropped {found['count']}")


def run(
    program: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The program whose handlers answer.")],
    data: Annotated[
        Path | None, typer.Option(help="Directory of what must survive; without one, nothing does.")
    ] = None,
    as_json: SpeaksJsonOption = True,
) -> None:
    """Answer messages on standard input without a node. One JSON line each; ends when nothing is left to do.

    Exit code 0 when every line succeeded, 1 when one failed. Example: `run shop:app < messages.ndjson`.
    """
    del as_json
    failed = asyncio.run(_run(program, data))
    if failed:
        note(f"mainspring: {failed} of the lines failed")
        raise typer.Exit(1)


async def _run(program: str, data: Path | None) -> int:
    from mainspring.log import Log, open_engine
    from mainspring.node import load_program
    from mainspring.server import run_batch

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


def listed(wire: Wire) -> Iterator[dict[str, Any]]:
    """Every type, page by page: all of them seldom fit one answer."""
    for page in itertools.count():
        answer = wire.ask("query", "Syscall.List", {"page": page})
        if answer["kind"] == "error":
            _show(answer, False)
        yield from answer["data"]["types"]
        if page + 1 >= answer["data"]["pages"]:
            return


def _show_tools(wire: Wire, type: str | None, as_json: bool) -> None:
    from mainspring.cli.program.mcp import tool_from

    found = []
    for name in [entry["type"] for entry in listed(wire)] if type is None else [type]:
        answer = described(wire, name)
        if answer["kind"] == "error":
            _show(answer, False)
        found.append(tool_from(name, answer["data"]).definition())
    if as_json:
        for each in found:
            say_json(each)
    else:
        say_json(found, 2)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    """Print an answer; an error ends the command with exit code 1."""
    if as_json:
        say_json(answer)
    elif answer["kind"] == "error":
        data = answer["data"]
        note(plain_lines(f"mainspring: {answer['type']} {data['code']}: {data['message']}"))
        if data.get("remedy"):
            note(f"  {safe(data['remedy'])}")
    else:
        say_json(answer["data"], 2)
    if answer["kind"] == "error":
        raise typer.Exit(1)
