"""Looking at the log's stream without being a node, and making it before the first node comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.log.engines.nats.address import Address, parse
from mainspring.log.engines.nats.connection import Connection
from mainspring.log.engines.nats.durability import judged
from mainspring.log.engines.nats.encoding import FORMAT
from mainspring.log.engines.nats.startup import find_stream, look_for_stream
from mainspring.log.inspect import Inspection


async def inspect_stream(text: str) -> Inspection:
    """What is there. Unlike a node this changes nothing, also not the number of replicas the address asks for."""
    address = parse(text)
    place = f"{address.stream} on {', '.join(address.servers)}"
    async with _connected(address) as connection:
        found = await look_for_stream(connection, address)
        if found is None:
            missing = (f"the stream {address.stream}",)
            return Inspection(place=place, log=False, knows=FORMAT, missing=missing)
        durability, window = await judged(address, found, connection.servers)
    return Inspection(
        place=place,
        log=True,
        knows=FORMAT,
        format=found.format,
        replicas=found.replicas,
        wanted_replicas=address.replicas or None,
        durability=durability,
        loss_window_s=window,
    )


async def make_stream(text: str) -> None:
    """Have the stream there, with as many replicas as the address asks for."""
    address = parse(text)
    async with _connected(address) as connection:
        await find_stream(connection, address)


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[Connection]:
    connection = Connection(address, "mainspring engine")
    try:
        await connection.open(address.patience)
        yield connection
    finally:
        await connection.close()
