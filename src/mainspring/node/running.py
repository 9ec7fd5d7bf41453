"""A program inside another process: `app.running()`. Its node, or a client of the process that is its node.

Of the processes on one data directory one holds the log's lock, and that one is the node. The others reach it through
its private socket, with the same verbs. The lock ends with its process however that ends. So who loses the connection
tries to become the node: one of them does, and the others find it in its place.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from mainspring.app import App
from mainspring.client import Client, connect
from mainspring.errors import BootError, MainspringError
from mainspring.node.node import WANTED, Node
from mainspring.server import AsgiFace
from mainspring.settings import Settings, load_all
from mainspring.unix_socket import is_listening, private_place

logger: logging.Logger = logging.getLogger("mainspring.node")

ADDRESS: Final = "ws://127.0.0.1"  # what requests say; the socket is found by its path
AGAIN_S: Final = 0.2  # between two tries to become the node, or to reach it
PATIENCE_S: Final = 30.0  # for the node to serve this process, which it does within a moment unless it is stuck


class Running:
    """The place of an app in this process: `start` it, then `stop` it. Used once."""

    def __init__(self, app: App, given: dict[str, Any]) -> None:
        """`given` are settings by name; those that are None come from the environment, the file or the defaults."""
        loaded = load_all(**given)
        self._app = app
        self._settings: Settings = loaded.settings
        asked = {"port": "port", "kernel": "kernel_socket", "loop": "loop_socket"}
        self._sockets = [socket for socket, name in asked.items() if loaded.sources[name] != "default"]
        self._node: Node | None = None
        self._client: Client | None = None
        self._asgi: AsgiFace | None = None
        self._changed = asyncio.Event()  # the node must end, or the connection was lost

    async def start(self) -> None:
        """Become the node, or a client of it. Raises BootFailure."""
        await self._find_place(asyncio.get_running_loop().time() + PATIENCE_S)
        self._staying = asyncio.create_task(self._stay(), name="the node of the program")

    async def stop(self) -> None:
        """Finish what was accepted, and give the place back."""
        self._staying.cancel()
        await asyncio.wait([self._staying])
        await self._leave()

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The node's pages and routes, wherever the node is."""
        if self._asgi is None:
            self._asgi = AsgiFace(self._find_socket)
        await self._asgi(scope, receive, send)

    async def _find_socket(self) -> Path:
        return private_place(self._settings.data) if self._node is None else await self._node.private_socket()

    async def _find_place(self, until: float) -> None:
        while True:
            try:
                if not is_listening(private_place(self._settings.data)):  # who does holds the lock
                    return await self._become_node()
            except BootError as error:
                if error.code != "log_locked":
                    raise
                Path(self._settings.data, WANTED).touch()
                if asyncio.get_running_loop().time() > until:
                    await self._leave()
                    raise
            client = self._client or await self._open_client()
            if client.connected:
                return self._use(client)
            await asyncio.sleep(AGAIN_S)

    async def _become_node(self) -> None:
        node = Node(self._settings, self._app, sockets=self._sockets)
        await node.boot()
        self._node = node
        self._changed.clear()  # the connection that was lost was to the node before
        if self._client is not None:  # what waits there for an answer gets it, and others look there, too
            await node.private_socket()
        node.on_shutdown(self._changed.set)

    async def _open_client(self) -> Client:
        """It is kept when this process becomes the node."""
        self._client = connect(
            ADDRESS,
            unix_socket=str(private_place(self._settings.data)),
            connect_timeout=0,
            on_state=lambda state: self._changed.set() if state == "waiting" and self._node is None else None,
        )
        await self._client.open()
        return self._client

    def _use(self, client: Client) -> None:
        if self._app.node is None:
            self._app.use(client)

    async def _stay(self) -> None:
        """When the node is gone, look for a place again; for ever, because the program goes on."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._node is not None:
                    if self._node.failure is None:
                        logger.warning("asked to stop: a node inside another program ends with that program")
                        continue
                    node, self._node = self._node, None
                    await node.drain()
                await self._find_place(float("inf"))
            except MainspringError as error:
                logger.error("the program has no node: %s", error)
                await asyncio.sleep(AGAIN_S)
                self._changed.set()

    async def _leave(self) -> None:
        if self._asgi is not None:
            await self._asgi.close()
        if self._client is not None:
            await self._client.close()
        if self._node is not None:
            await self._node.drain()
        self._app.node = None
        self._app.tasks.use(None)
