"""`mainspring engine`: prepare the place that holds the log, and see what is there and what it is worth.

`check` looks and changes nothing; `init` makes what is missing. `compare` and `recover` are for the day on which
servers came back with less than they had acknowledged. Exit codes: 0 done, 1 it could not be done, 2 the command line
is wrong; of `check` also 3, the log is there but what it acknowledges could still be lost, and 4, the log or a part of
it is not there yet; of `compare` also 3, the logs differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import msgspec
import typer

from mainspring.bus import SYSTEM, origin_of
from mainspring.cli.node.log import new_log_file
from mainspring.cli.node.settings import ConfigOption
from mainspring.cli.support.log_options import opened, reading, visiting
from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import NodeOptions, YesOption, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, listing, progress, safe, say, say_done, say_json
from mainspring.client import path
from mainspring.log import (
    Engine,
    EngineSetup,
    Inspection,
    LogExport,
    LogMissing,
    Moved,
    Parting,
    SqliteEngine,
    StoredEvent,
    Unreadable,
    compare_logs,
    engine_factory,
    find_unreadable,
    import_lines,
    inspect_log,
    log_file,
)
from mainspring.node import all_readers
from mainspring.settings import Settings, load_all, without_secrets

NOT_DURABLE = 3
NOT_THERE = 4
DIFFERENT = 3
MOST_SHOWN = 20

app: typer.Typer = Commands("Prepare and check the place that holds the log.")

AddressArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="sqlite, postgresql://HOST/DB, nats://HOST/LOG or mongodb://HOST/DB.  [default: the setting `engine`]",
    ),
]


@app.command()
def init(
    url: AddressArgument = None,
    begin_anew: Annotated[
        bool, typer.Option("--begin-anew", help="Make an empty log also where one was and is gone.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Make what the log needs. The stream, the collections and indexes, or the file. Harmless when it is all there.

    Where something shows that a log was there and is gone, none is made: restore it, or give --begin-anew.
    """
    settings = load_all(config, engine=url).settings
    before = _inspected(settings)
    setup = EngineSetup(Path(settings.data), database=settings.mongo_db, begin_anew=begin_anew)
    made = list(asyncio.run(engine_factory(settings.engine).init(settings.engine, setup)))
    if as_json:
        say_json({"place": before.place, "made": made, "existed": bool(before.log and not before.missing)})
        return
    for line in made:
        say(line)
    say(f"the log is {'there already' if before.log and not before.missing else 'ready'}: {before.place}")


@app.command()
def check(
    url: AddressArgument = None,
    records: Annotated[
        bool, typer.Option("--records", help="Also read the log, and list records that nobody can read.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Look at what is there, and change nothing. Is there a log, its format, its replicas, and what could be lost.

    Exit codes: 0 the log is there, and what it acknowledges is safe; 1 it could not be looked at: nobody answers, or
    something else is there; 2 the command line is wrong; 3 the log is there, but what it acknowledges could still be
    lost, or a record cannot be read; 4 the log, or a part of it, is not there yet: `mainspring engine init` makes it.
    """
    settings = load_all(config, engine=url).settings
    found = _inspected(settings)
    unreadable = _unreadable(settings) if records and found.log and settings.engine != "memory" else []
    if as_json:
        listed = [{"space": each.space, "key": each.key, "why": each.why} for each in unreadable]
        say_json(_as_object(found, settings) | ({"unreadable": listed} if records else {}))
    else:
        for line in _in_words(found, settings):
            say(line)
        for each in unreadable:
            say(safe(f"unreadable    {each.space} {each.key}: {each.why}"))
    if found.missing:
        raise typer.Exit(NOT_THERE)
    if found.durability is None or not found.durability.durable or unreadable:
        raise typer.Exit(NOT_DURABLE)


def _unreadable(settings: Settings) -> list[Unreadable]:
    """Records that nobody can read, and those that were written over since."""
    with reading(settings) as engine, progress() as show:

        async def look() -> list[Unreadable]:
            return [each async for each in find_unreadable(engine, all_readers(), show)]

        return opened(engine, look())


LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="A log's file (also a replica), a data directory, or an engine's address.")
]


@app.command()
def compare(left: LogArgument, right: LogArgument, as_json: JsonOption = False) -> None:
    """Show where two logs go apart, and which events only one holds. Exit code 3: they differ.

    A node that finds that the servers have another history than it has seen keeps its log as
    `nats-NAME.sqlite3.replaced-1` or `mongodb-DATABASE.sqlite3.replaced-1`: compare that with the log of now.
    """
    found = _compared(left, right)
    for each in found:
        if as_json:
            say_json(_parting_object(each))
        else:
            _say_parting(each)
    if found:
        raise typer.Exit(DIFFERENT)
    if not as_json:
        say("the logs hold the same events")


@app.command()
def recover(
    lost: LogArgument,
    log: Annotated[
        str | None, typer.Option("--compare-with", metavar="LOG", help="Publish what this log does not hold.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Make a log of it, in a new data directory.")
    ] = None,
    *,
    at: NodeOptions,
    yes: YesOption = False,
) -> None:
    """Publish what only a kept log holds, or make a log of it. Events keep their ids; a second time stores nothing.

    With --compare-with, events that the other log does not hold are published again to the node at --url. With --into,
    the kept log becomes the log of a data directory, offsets and groups and all, for a node with the sqlite engine or
    for `mainspring log export`.
    """
    if (log is None) == (into is None):
        raise typer.BadParameter("give --compare-with LOG or --into DIR", param_hint="--compare-with")
    if into is not None:
        moved = _made_log(lost, log_file(into))
        say_done(moved, at.as_json, f"made {log_file(into)}: {moved.events} events, {moved.records} records")
        return
    assert log is not None
    events = [event for each in _compared(lost, log) for event in each.only_left]
    ours = [event for event in events if _is_of_nodes(event.topic)]
    if len(events) > len(ours):
        confirm(f"Publish {len(events) - len(ours)} events again at {at.found.unix_socket or at.found.url}?", yes)
    result = {"published": _publish_again([event for event in events if event not in ours], at), "left": len(ours)}
    words = f"; {len(ours)} events of the nodes themselves are left" if ours else ""
    say_done(result, at.as_json, f"published {result['published']} events again{words}")


def _compared(left: str, right: str) -> list[Parting]:
    with _log(left) as one, _log(right) as other, progress() as show:

        async def work() -> list[Parting]:
            await other.open()
            try:
                return [each async for each in compare_logs(one, other, show)]
            finally:
                await other.close()

        return opened(one, work())


@contextmanager
def _log(place: str) -> Iterator[Engine]:
    """An engine to read what a user named: an address, a data directory, or a file."""
    if "://" in place:
        with visiting(load_all(None, engine=place).settings) as engine:
            yield engine
        return
    file = log_file(place) if Path(place).is_dir() else Path(place)
    if not file.exists():
        raise LogMissing(f"there is no log at {file}", remedy="name a log's file, a data directory or an address")
    yield SqliteEngine(file, read_only=True)


def _made_log(lost: str, target: Path) -> Moved:
    with _log(lost) as source, new_log_file(target) as engine, progress() as show, TemporaryFile() as lines:

        async def write() -> None:
            async for line in LogExport(source, progress=show).lines():
                lines.write(line)

        opened(source, write())
        lines.seek(0)
        return opened(engine, import_lines(lines, engine, show))


def _is_of_nodes(topic: str) -> bool:
    """Whether only nodes write there: what they keep of themselves, and dead letters."""
    return topic.startswith(SYSTEM) or topic != origin_of(topic)


def _publish_again(events: list[StoredEvent], at: NodeOptions) -> int:
    with at.connect() as connection, progress() as show:
        for number, event in enumerate(events, 1):
            body = {"id": event.id, "key": event.key, "payload": msgspec.Raw(event.payload)}
            if event.headers is not None:
                body["headers"] = msgspec.Raw(event.headers)
            connection.call("POST", path("topics", event.topic, "events"), msgspec.json.encode(body))
            show("events", number, len(events))
    return len(events)


def _parting_object(parting: Parting) -> dict[str, Any]:
    sides = {"only_left": parting.only_left, "only_right": parting.only_right}
    told = {side: [{"offset": each.offset, "id": each.id} for each in events] for side, events in sides.items()}
    return {"topic": parting.topic, "partition": parting.partition, "offset": parting.offset, **told}


def _say_parting(parting: Parting) -> None:
    say(f"{safe(parting.topic)} partition {parting.partition}: they differ from offset {parting.offset} on")
    for side, events in (("left", parting.only_left), ("right", parting.only_right)):
        for event in events[:MOST_SHOWN]:
            say(f"  only {side}: {event.offset} {safe(event.id)}")
        if len(events) > MOST_SHOWN:
            say(f"  only {side}: and {len(events) - MOST_SHOWN} more; --json shows all")


def _inspected(settings: Settings) -> Inspection:
    return asyncio.run(inspect_log(settings.engine, settings.data, database=settings.mongo_db))


def _as_object(found: Inspection, settings: Settings) -> dict[str, Any]:
    durability = found.durability
    return {
        "engine": without_secrets(settings.engine),
        "place": found.place,
        "log": found.log,
        "gone": found.gone,
        "missing": found.missing,
        "format": found.format,
        "knows_format": found.knows,
        "replicas": found.replicas,
        "durable": None if durability is None else durability.durable,
        "statement": "" if durability is None else durability.statement,
        "loss_window_s": found.loss_window_s,
    }


def _in_words(found: Inspection, settings: Settings) -> Iterator[str]:
    yield f"place         {found.place}"
    if settings.engine == "memory":
        yield "log           comes and goes with its node"
    elif found.gone:
        yield "log           gone; it was there: restore it, or run `mainspring engine init --begin-anew`"
    elif not found.log:
        yield "log           not there yet: run `mainspring engine init`, or start a node"
    else:
        newer = f"; the next node to start brings it to {found.knows}" if found.format != found.knows else ""
        yield f"log           there, format {found.format}{newer}"
        for each in found.missing:
            yield f"missing       {each}: run `mainspring engine init`"
    if found.replicas is not None and settings.engine != "sqlite":
        wanted = found.wanted_replicas
        more = "" if wanted in (None, found.replicas) else f"; the address asks for {wanted}, which init or a node sets"
        yield f"replicas      {found.replicas}{more}"
    if found.durability is not None:
        lost_s = found.loss_window_s
        window = "not known, or everything" if lost_s is None else f"{lost_s:g} s" if lost_s else "none"
        yield f"loss window   {window}"
        yield f"{'durable' if found.durability.durable else 'not durable'}: {found.durability.statement}"


def nodes(at: NodeOptions) -> None:
    """List the nodes that share a log. Name, address, version, roles, and who serves what.

    A node that was killed is listed until its lease is over; when it was last heard tells.
    """
    found: list[dict[str, Any]] = at.get("/nodes")["nodes"]
    listing(
        found,
        at.as_json,
        ("node", ">epoch", "address", "since", "heard", "version", "roles", "serves"),
        lambda each: (
            each["name"] + (" (asked)" if each["here"] else ""),
            each["epoch"],
            each["address"],
            date_text(each["since"]) if each["since"] else "",
            "" if each["here"] else f"{each['silent_ms'] // 1000} s ago",
            each["version"],
            " ".join(each["roles"]),
            " ".join(handled.partition(":")[2] for handled in each["serves"]),
        ),
        empty="nobody",
    )
