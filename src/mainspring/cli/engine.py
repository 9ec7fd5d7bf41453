"""`mainspring engine`: prepare the server that holds the log, and see what its acknowledgements are worth.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 3 the engine answers, but what it acknowledges
could still be lost.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from mainspring.cli.loading import load_all
from mainspring.cli.settings import ConfigOption
from mainspring.cli.visiting import visiting
from mainspring.cluster import durability
from mainspring.log import Durability, Log
from mainspring.settings import Settings

NOT_DURABLE = 3

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Prepare and check the server that holds the log.",
)

AddressArgument = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="nats://HOST/LOG or mongodb://HOST/DATABASE.  [default: the engine set]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command()
def init(url: AddressArgument = None, config: ConfigOption = None) -> None:
    """Make what the log needs on its server: collections and indexes, or the stream. Harmless when it is all there."""
    settings = load_all(config, engine=url).settings
    if settings.engine.startswith("mongodb"):
        from mainspring.log.mongo import init as make_collections

        for line in asyncio.run(make_collections(settings.engine, database=settings.mongo_db)):
            typer.echo(line)
        return
    found = asyncio.run(_durability(settings))
    typer.echo(f"the log is there; {found.statement}")


@app.command()
def check(url: AddressArgument = None, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Connect, and say what an acknowledgement of the engine means as its server is configured now.

    A log that is not there yet is made, empty. The exit code is 3 when what is acknowledged could still be lost.
    """
    found = asyncio.run(_durability(load_all(config, engine=url).settings))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        typer.echo(f"{'durable' if found.durable else 'not durable'}: {found.statement}")
    if not found.durable:
        raise typer.Exit(NOT_DURABLE)


async def _durability(settings: Settings) -> Durability:
    """Opening makes what is missing."""
    with visiting(settings) as engine:
        log = Log(engine)
        await log.open()
        try:
            return await durability(log)
        finally:
            await log.close()


__all__ = ["app"]
