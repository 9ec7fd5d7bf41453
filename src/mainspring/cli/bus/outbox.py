"""`mainspring outbox`: carry rows of a program's own database to the bus, and look after those that would not go.

`drain` may run any number of times side by side; they share the work and send nothing twice.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

import typer
import uuid_utils

from mainspring.cli.support.moments import date_text, duration_option
from mainspring.cli.support.node_options import NodeOptions, YesOption, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import INTERRUPTED, JsonOption, note, say, say_done, say_json, short, table
from mainspring.client import PATIENCE_S
from mainspring.durations import duration_text
from mainspring.loop import MonotonicClock
from mainspring.outbox import TABLE, Drained, Drainer, DrainOptions, OutboxStore, open_outbox

app: typer.Typer = Commands("Carry rows of a program's own database to the bus.")


@dataclass(frozen=True)
class OutboxOptions:
    """Where the outbox is."""

    database: Annotated[
        str,
        typer.Option(
            "--database",
            "-d",
            envvar="OUTBOX_DATABASE",
            show_envvar=True,
            help="sqlite:///file.db, postgresql://user@host/name or mongodb://host/name.",
        ),
    ]
    table: Annotated[str, typer.Option("--table", "-t", help="The outbox's table or collection.")] = TABLE

    def open(self) -> closing[OutboxStore]:
        return closing(open_outbox(self.database, self.table))


@app.command()
def create(outbox: OutboxOptions, as_json: JsonOption = False) -> None:
    """Make the outbox's table and indexes where they are missing."""
    with outbox.open() as store:
        store.create()
    say_done({"table": outbox.table, "created": True}, as_json, f"the outbox {outbox.table} is there")


@app.command()
def drain(
    outbox: OutboxOptions,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left that may be sent now.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=5000, help="Rows to claim at once.")] = 100,
    lease: Annotated[str, typer.Option(help="How long a claim holds when a drainer dies.")] = "60s",
    max_attempts: Annotated[int, typer.Option(min=1, help="Refusals before a row is set aside.")] = 10,
    poll: Annotated[str, typer.Option(help="Time between two looks when nothing is there.")] = "500ms",
    keep: Annotated[str, typer.Option(help="Forget sent rows after so long. 0: never.")] = "7d",
    *,
    at: NodeOptions,
) -> None:
    """Publish rows, oldest first. Each is stamped when the node has it. Goes on until Ctrl-C or SIGTERM.

    A node that is away is waited for; a row the node refuses is tried again later and set aside at last.
    """
    options = DrainOptions(
        batch=batch,
        lease_ms=duration_option(lease, "--lease"),
        max_attempts=max_attempts,
        poll_ms=duration_option(poll, "--poll"),
        keep_ms=0 if keep == "0" else duration_option(keep, "--keep"),
    )
    logging.basicConfig(level=logging.WARNING, format="mainspring: %(message)s", stream=sys.stderr)
    with outbox.open() as store:
        patience_s = min(PATIENCE_S, options.lease_ms / 2000)
        # Unlike any other drainer's: the host and process for people, the rest to be sure.
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid_utils.uuid7()}"
        with closing(Drainer(store, at.connect(patience_s), name, MonotonicClock(), random.random, options)) as drainer:
            if once:
                _say_drained(drainer.drain_all(), store, at.as_json)
            elif _until_signal(drainer, at.as_json) == signal.SIGINT:
                raise typer.Exit(INTERRUPTED)


@app.command()
def show(
    outbox: OutboxOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Rows set aside to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show what waits. How many rows and since when, and which were set aside and why."""
    with outbox.open() as store:
        counted, aside = store.count(), store.aside(limit)
    age_ms = None if counted.oldest_ms is None else max(0, MonotonicClock().wall_ms() - counted.oldest_ms)
    if as_json:
        rows = [{"id": row.id, "topic": row.topic, "key": row.key, "error": row.error} for row in aside]
        say_json({"waiting": counted.waiting, "oldestMs": age_ms, "setAside": counted.set_aside, "rows": rows})
        return
    since = "" if age_ms is None else f", the oldest for {duration_text(age_ms // 1000 * 1000) or '0s'}"
    say(f"{counted.waiting:,} waiting{since}; {counted.set_aside:,} set aside")
    if aside:
        table(
            ("id", "added", "topic", "key", ">attempts", "reason"),
            (
                (row.id, date_text(row.created_ms)[:19], row.topic, row.key, row.attempts, short(row.error, 80))
                for row in aside
            ),
        )


@app.command()
def retry(
    outbox: OutboxOptions,
    id: Annotated[list[str] | None, typer.Option("--id", help="This row; may be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All rows that were set aside.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let rows that were set aside wait again. They have all their attempts before them."""
    if not id and not everything:
        raise typer.BadParameter("say which: --id, or --all")
    confirm("Try these rows again?", yes)
    with outbox.open() as store:
        count = store.retry(id or None)
    say_done({"retried": count}, as_json, f"{count:,} rows wait again")


def _until_signal(drainer: Drainer, as_json: bool) -> int:
    """Drain until a signal, finish the round, give back what is claimed; the signal."""
    stopping = threading.Event()
    heard: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        heard.append(number)
        stopping.set()

    def on_round(drained: Drained) -> None:
        if drained.rows or drained.cleaned:
            say_done(_told(drained), as_json, _said(drained))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    drainer.run(stopping.wait, on_round)
    return heard[0]


def _say_drained(drained: Drained, store: OutboxStore, as_json: bool) -> None:
    left = store.count()
    if as_json:
        say_json({**_told(drained), "waiting": left.waiting, "setAsideInAll": left.set_aside})
        return
    say(_said(drained))
    if left.waiting:
        note(f"{left.waiting:,} rows wait for a later attempt, or are claimed by another drainer")
    if left.set_aside:
        note(f"{left.set_aside:,} rows are set aside; `mainspring outbox show` says why")


def _told(drained: Drained) -> dict[str, int]:
    return {"sent": drained.sent, "refused": drained.refused, "setAside": drained.set_aside, "cleaned": drained.cleaned}


def _said(drained: Drained) -> str:
    parts = [f"sent {drained.sent:,} rows"]
    if drained.refused:
        parts.append(f"{drained.refused:,} refused")
    if drained.set_aside:
        parts.append(f"{drained.set_aside:,} set aside")
    if drained.cleaned:
        parts.append(f"forgot {drained.cleaned:,} sent long ago")
    return ", ".join(parts)
