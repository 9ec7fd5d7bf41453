"""Real nodes on a real server: processes that are asked over HTTP, stopped, killed and started again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.support.mongo_server import own_server, with_database
from tests.support.nats_server import NatsServer
from tests.support.postgres import Postgres, running_postgres
from tests.support.serving import Serving

PATIENCE_S = 60.0
LEASE_MS = "2000"

PROGRAM = """
from mainspring import App

app = App("shop")


@app.query("Stock.Count")
async def count(data: dict, ctx) -> dict:
    return {"counted": data}
"""


class Server(Protocol):
    """A server that holds a log; it can be killed and started again with what it stored."""

    address: str

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Nats:
    def __init__(self, server: NatsServer) -> None:
        self.address = server.url("test", patience=2)
        self.kill, self.start = server.kill, server.start


@contextmanager
def nats(place: Path) -> Iterator[Server]:
    server = NatsServer(place / "nats").start()
    try:
        yield Nats(server)
    finally:
        server.kill()


class Mongo:
    def __init__(self, server: Any) -> None:
        self.address = with_database(server.url, "test", "directConnection=true&patience_ms=5000")
        self.kill, self.start = server.kill, server.start


@contextmanager
def mongo(place: Path) -> Iterator[Server]:
    with own_server() as server:
        yield Mongo(server)


class PostgresSite:
    def __init__(self, server: Postgres) -> None:
        self.address = f"{server.url('postgres')}?patience_ms=5000"
        self.kill, self.start = server.stop, server.start


@contextmanager
def postgres(place: Path) -> Iterator[Server]:
    with running_postgres() as server:
        yield PostgresSite(server)


SERVERS: dict[str, Callable[[Path], Any]] = {"nats": nats, "mongo": mongo, "postgres": postgres}


class ServedNode:
    """One node process, asked over HTTP."""

    def __init__(self, place: Path, name: str, engine: str, *arguments: str) -> None:
        folder = place / name
        folder.mkdir(exist_ok=True)
        (folder / "shop.py").write_text(PROGRAM)
        (folder / "stderr.txt").touch()
        self.process = Serving(
            *arguments,
            *("--node", name),
            folder=folder,
            engine=engine,
            env={"MAINSPRING_NODE_LEASE_MS": LEASE_MS},
        )

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.process.port}{path}",
            data=data,
            method=method,
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return reply.status, json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def publish(self, topic: str, payload: Any) -> int:
        """The status."""
        return self.ask("POST", f"/topics/{topic}/events", {"payload": payload})[0]

    def insist(self, topic: str, payload: Any, id: str) -> None:
        """Publish it under one id until the node says that it is stored, as a client would."""
        event = {"payload": payload, "id": id}
        eventually(lambda: self.ask("POST", f"/topics/{topic}/events", event)[0] == 201, f"{id} to be stored")

    def payloads(self, topic: str) -> list[Any]:
        status, found = self.ask("GET", f"/topics/{topic}/events?limit=1000")
        return [event["payload"] for event in found["events"]] if status == 200 else []

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.ask("GET", "/nodes")[1]["nodes"]}

    @property
    def ready(self) -> bool:
        return self.ask("GET", "/readyz")[0] == 200


class Site:
    """Nodes on one server, all ended when the test ends."""

    def __init__(self, place: Path, server: Server, ends: ExitStack) -> None:
        self.place, self.server, self._ends = place, server, ends

    def node(self, name: str, *arguments: str) -> ServedNode:
        node = ServedNode(self.place, name, self.server.address, *arguments)
        self._ends.enter_context(node.process)
        return node

    def starting(self, name: str, *arguments: str) -> ServedNode:
        """Not started: the test does."""
        node = ServedNode(self.place, name, self.server.address, *arguments)
        self._ends.callback(node.process.__exit__, None, None, None)
        return node


@contextmanager
def site(place: Path, kind: str) -> Iterator[Site]:
    with ExitStack() as ends:
        yield Site(place, ends.enter_context(SERVERS[kind](place)), ends)


def eventually(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, f"it never came: {what}"
        time.sleep(0.05)
    return found
