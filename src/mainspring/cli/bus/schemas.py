"""`mainspring schemas`: what the payloads of topics look like, and the next version of it.

A schema is a file with JSON Schema, `-` for standard input, or MODULE:TYPE, a Python type of the program at hand.
`check` says what `register` would say and changes nothing, so it belongs before a deployment; exit code 1 means no.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.bus.schemas import schema_of
from mainspring.cli.support.node_options import NodeOptions, TopicArgument
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import CommandFailed, listing, note, safe, say, say_done, say_json
from mainspring.client import path
from mainspring.errors import BootError
from mainspring.import_path import find_object
from mainspring.json_text import JsonRefused, read_value

app: typer.Typer = Commands("List, show, register and check the schemas of topics.")

SourceArgument = Annotated[
    str, typer.Argument(metavar="SCHEMA", help="A file with JSON Schema, - for standard input, or MODULE:TYPE.")
]
ModeOption = Annotated[
    str | None, typer.Option("--compatibility", help="none, backward, forward or full.  [default: the topic's]")
]


@app.command("list")
def list_schemas(at: NodeOptions) -> None:
    """List topics that have a schema. Its latest version, and what the next must keep to."""
    found = at.get("/schemas")["schemas"]
    listing(
        found,
        at.as_json,
        ("topic", ">latest", "compatibility"),
        lambda each: (each["topic"], each["latest"], each["compatibility"]),
        empty="no topic has a schema; `mainspring schemas register TOPIC SCHEMA` gives it one",
    )


@app.command()
def show(
    topic: TopicArgument,
    version: Annotated[int | None, typer.Option(min=1, help="Which version.  [default: the latest]")] = None,
    *,
    at: NodeOptions,
) -> None:
    """Show one version of a topic's schema. Standard output gets the schema alone, so that a file can keep it."""
    if version is None:
        told = at.get(path("schemas", topic))["versions"][-1]
    else:
        told = at.get(path("schemas", topic, version))
    if at.as_json:
        say_json(told)
        return
    note(f"{safe(topic)}, version {told['version']}, {told['compatibility']}")
    say(json.dumps(told["schema"], indent=2, ensure_ascii=True))


@app.command()
def register(
    topic: TopicArgument, schema: SourceArgument, compatibility: ModeOption = None, *, at: NodeOptions
) -> None:
    """Make this the topic's next version. The same schema again is the version that is there."""
    asked = _request(schema=read_schema(schema), compatibility=compatibility)
    told = at.call("POST", path("schemas", topic), asked)
    say_done(told, at.as_json, f"{safe(topic)} has version {told['version']}, {told['compatibility']}")


@app.command()
def check(
    topic: TopicArgument,
    schema: Annotated[str | None, typer.Argument(metavar="SCHEMA", help="As for register.")] = None,
    payload: Annotated[str | None, typer.Option(help="Check a payload instead: a file, or -.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="For a payload.  [default: latest]")] = None,
    compatibility: ModeOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Ask whether a schema or a payload would be taken. Changes nothing. Exit code 1: no."""
    if (schema is None) == (payload is None):
        raise typer.BadParameter("give either SCHEMA or --payload", param_hint="SCHEMA")
    if schema is not None:
        asked = _request(schema=read_schema(schema), compatibility=compatibility)
    else:
        asked = _request(payload=_read_json(payload or "-"), version=version)
    told = at.call("POST", path("schemas", topic, "check"), asked)
    fits = told.get("compatible", told.get("fits"))
    if at.as_json:
        say_json(told)
    elif "fits" in told:
        say(f"fits version {told['version']}" if fits else f"does not fit: {safe(told['reason'])}")
    else:
        against = f"version {told['against']}" if told["against"] else "nothing: it would be the first version"
        say(f"{'' if fits else 'not '}{told['compatibility']} compatible with {against}")
        for each in told["differences"]:
            say(f"  {safe(each)}")
    if not fits:
        raise typer.Exit(1)


def _request(**members: Any) -> bytes:
    return json.dumps(
        {name: value for name, value in members.items() if value is not None or name == "payload"}
    ).encode()


def read_schema(source: str) -> Any:
    """The schema that a file, standard input or MODULE:TYPE holds."""
    if source == "-" or ":" not in source or Path(source).exists():
        return _read_json(source)
    try:
        return schema_of(find_object(source, "type", "MODULE:TYPE, like shop:Order"))
    except BootError as error:
        raise CommandFailed(
            f"{safe(source)} is neither a file nor a type: {error.message}", remedy=error.remedy
        ) from None


def _read_json(source: str) -> Any:
    try:
        text = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return read_value(text, safe(source))
    except OSError as error:
        raise CommandFailed(
            f"cannot read {safe(source)}: {error.strerror}", remedy="name a file, or - to read it"
        ) from None
    except JsonRefused as error:
        raise CommandFailed(error.message, remedy='a schema is written like {"type": "object"}') from None
