"""`mainspring engine`: prepare the place that holds the log, and see what is there and what it is worth.

`check` looks and changes nothing; `init` makes what is missing. Exit codes: 0 done, 1 it could not be done, 2 the
command line is wrong; of `check` also 3, the log is there but what it acknowledges could still be lost, and 4, the log
or a part of it is not there yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.node.settings import ConfigOption
from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import NodeOptions
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, listing, say_json
from mainspring.cli.support.settings import load_all
from mainspring.log import EngineSetup, Inspection, engine_factory, inspect_log
from mainspring.settings import Settings, without_secrets

NOT_DURABLE = 3
NOT_THERE = 4

app: typer.Typer = Commands("Prepare and check the place that holds the log.")

AddressArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="URL", help="sqlite, nats://HOST/LOG or mongodb://HOST/DATABASE.  [default: the setting `engine`]"
    ),
]


@app.command()
def init(url: AddressArgument = None, config: ConfigOption = None) -> None:
    """Make what the log needs. The stream, the collections and indexes, or the file. Harmless when it is all there."""
    settings = load_all(config, engine=url).settings
    before = _inspected(settings)
    setup = EngineSetup(Path(settings.data), database=settings.mongo_db)
    for line in asyncio.run(engine_factory(settings.engine).init(settings.engine, setup)):
        typer.echo(line)
    typer.echo(f"the log is {'there already' if before.log and not before.missing else 'ready'}: {before.place}")


@app.command()
def check(url: AddressArgument = None, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Look at what is there, and change nothing. Is there a log, its format, its replicas, and what could be lost.

    Exit codes: 0 the log is there, and what it acknowledges is safe; 1 it could not be looked at: nobody answers, or
    something else is there; 2 the command line is wrong; 3 the log is there, but what it acknowledges could still be
    lost; 4 the log, or a part of it, is not there yet: `mainspring engine init` makes it.
    """
    settings = load_all(config, engine=url).settings
    found = _inspected(settings)
    if as_json:
        say_json(_as_object(found, settings))
    else:
        for line in _in_words(found, settings):
            typer.echo(line)
    if found.missing:
        raise typer.Exit(NOT_THERE)
    if found.durability is None or not found.durability.durable:
        raise typer.Exit(NOT_DURABLE)


def _inspected(settings: Settings) -> Inspection:
    return asyncio.run(inspect_log(settings.engine, settings.data, database=settings.mongo_db))


def _as_object(found: Inspection, settings: Settings) -> dict[str, Any]:
    durability = found.durability
    return {
        "engine": without_secrets(settings.engine),
        "place": found.place,
        "log": found.log,
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
