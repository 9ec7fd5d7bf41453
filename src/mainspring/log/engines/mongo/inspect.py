"""Looking at the log's database without being a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.errors import PyMongoError

from mainspring.log.engines.mongo import schema
from mainspring.log.engines.mongo.address import DEFAULT_DATABASE, parse_address
from mainspring.log.engines.mongo.connection import connect, database_of
from mainspring.log.engines.mongo.durability import describe
from mainspring.log.engines.mongo.faults import translated
from mainspring.log.inspect import Inspection


async def inspect_database(url: str, *, database: str = DEFAULT_DATABASE) -> Inspection:
    """What is there; nothing is made."""
    address = parse_address(url, database)
    client = connect(address)
    try:
        opened = database_of(client, address)
        there = await schema.check_format(opened)
        missing = tuple(await schema.missing(opened))
        hello: Mapping[str, Any] = await client.admin.command("hello")
    except PyMongoError as error:
        raise translated(error, address.shown) from error
    finally:
        await client.close()
    durability = describe(hello, client.write_concern.document)
    return Inspection(
        place=address.shown,
        log=there,
        knows=schema.FORMAT,
        format=schema.FORMAT if there else None,
        missing=missing,
        replicas=_members(hello),
        durability=durability,
        loss_window_s=0 if durability.durable else None,
    )


def _members(hello: Mapping[str, Any]) -> int | None:
    """How many servers hold the data; a router of shards does not tell."""
    if hello.get("msg") == "isdbgrid":
        return None
    return len(hello.get("hosts", ())) + len(hello.get("passives", ())) or 1
