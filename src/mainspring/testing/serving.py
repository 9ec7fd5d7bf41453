"""`serving`: a real node inside this process, for what a simulation leaves out: sockets, browsers, other programs.

    async with serving(app) as node:
        async with connect(node.url) as bus: ...

It listens on a free port and keeps everything in memory and in a folder of its own, unless settings say otherwise, so
that any number of tests may run at the same time. Time is real: what only needs virtual time is better simulated.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.app import App
from mainspring.settings import Settings

if TYPE_CHECKING:
    from mainspring.node import Node


@dataclass(frozen=True, slots=True)
class Served:
    """Where the node is. `url` is for clients, `http` for browsers, `kernel_socket` speaks NDJSON."""

    url: str
    http: str
    kernel_socket: Path
    loop_socket: Path
    node: Node


@asynccontextmanager
async def serving(app: App | None = None, **settings: Any) -> AsyncIterator[Served]:
    """Boot a node with the app, drain it at the end. `settings` are those of a node, by name.

    Give `engine="sqlite"` and `data` to serve what an earlier node has left there.
    """
    from mainspring.node import Node  # with its sockets comes a web server, which a simulation does not pay for

    with tempfile.TemporaryDirectory(prefix="ms-") as folder:  # short: the path of a unix socket must be
        chosen: dict[str, Any] = {
            "port": 0,
            "engine": "memory",
            "data": folder,
            "kernel_socket": f"{folder}/kernel.sock",
            "loop_socket": f"{folder}/loop.sock",
            **settings,
        }
        node = Node(Settings(**chosen), app)
        booted = await node.boot()
        try:
            (http,) = (each for each in booted.data["adapters"] if each.startswith("http"))
            yield Served(
                http.replace("http", "ws", 1), http, Path(chosen["kernel_socket"]), Path(chosen["loop_socket"]), node
            )
        finally:
            await node.drain()
