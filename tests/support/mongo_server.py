"""A real server that speaks MongoDB's protocol, for tests: the one of MONGO_URL, else `mongod`, else FerretDB.

FerretDB v1 with its SQLite back end is built once, by `make prepare`, from the Go module registry into a cache
directory of the user. Its released source lacks one file that says which version it is, so the source is copied and the
file added.

`mongod` is started as a replica set of one, so that transactions and change streams are there. FerretDB has neither.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

MODULE = "github.com/FerretDB/FerretDB"
VERSION = "v1.24.2"
START_S = 60.0  # how long to wait for a server to answer; never a measurement
_OWN = f"mainspring_test_{os.getpid()}_"  # how the names of this process's databases begin
_numbers = itertools.count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "mainspring-tests"


def ferretdb() -> Path:
    """The path of the FerretDB binary. Skips the test where it was not built."""
    if not _binary().exists():
        pytest.skip(missing() or "FerretDB, the MongoDB of the tests, is not built: make prepare builds it")
    return _binary()


def missing() -> str | None:
    """None where nothing is missing, empty text where FerretDB can be built, else why it cannot."""
    if os.environ.get("MONGO_URL") or shutil.which("mongod") or _binary().exists():
        return None
    return "" if shutil.which("go") else "no MongoDB here: set MONGO_URL, or install mongod, or Go (to build FerretDB)"


def build() -> None:
    """Build FerretDB. Processes that need it at the same time build it once between them."""
    _binary().parent.mkdir(parents=True, exist_ok=True)
    with (_binary().parent / "ferretdb.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _binary().exists():
            _build(_binary())


def _binary() -> Path:
    return _cache() / f"ferretdb-{VERSION}"


def _build(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ms-ferretdb-") as folder:
        (Path(folder) / "go.mod").write_text("module cache\n")
        env = {**os.environ, "GOFLAGS": "-mod=mod"}
        download = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        found = subprocess.run(download, cwd=folder, env=env, capture_output=True, check=True)
        source = Path(folder) / "source"
        shutil.copytree(json.loads(found.stdout)["Dir"], source)
        for place in [source, *source.rglob("*")]:
            place.chmod(place.stat().st_mode | 0o200)
        (source / "build" / "version" / "version.txt").write_text(VERSION + "\n")
        made = binary.with_name(f"{binary.name}.{os.getpid()}")
        subprocess.run(["go", "build", "-o", str(made), "./cmd/ferretdb"], cwd=source, capture_output=True, check=True)
        made.replace(binary)


class MongoServer:
    """A server process of this test run, on a port of its own. It can be killed, stopped and started again."""

    def __init__(self, folder: Path, *extra: str, kind: str = "") -> None:
        self.folder = folder
        self.extra = extra
        self.port = free_port()
        self.kind = kind or ("mongod" if shutil.which("mongod") else "ferretdb")
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        place = str(self.folder)
        if self.kind == "mongod":
            own = ["--dbpath", place, "--port", str(self.port), "--bind_ip", "127.0.0.1", "--replSet", "rs0"]
            return ["mongod", *own, *self.extra]
        own = ["--handler=sqlite", f"--state-dir={place}", f"--sqlite-url=file:{place}/", "--log-level=ERROR"]
        open_at = [f"--listen-addr=127.0.0.1:{self.port}", "--debug-addr=-", "--telemetry=disable"]
        return [str(ferretdb()), *own, *open_at, *self.extra]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=subprocess.STDOUT)
        client: Any = MongoClient(f"{self.url}/?directConnection=true", serverSelectionTimeoutMS=int(START_S * 1000))
        try:
            if self.kind == "mongod":
                _initiate(client)
            client.admin.command("hello")
        except PyMongoError as error:
            self.kill()
            raise AssertionError(f"{self.kind} did not start: {error}\n{self._log.read_text()[-2000:]}") from error
        finally:
            client.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _initiate(client: Any) -> None:
    with contextlib.suppress(PyMongoError):  # it was, before a restart
        client.admin.command("replSetInitiate")
    end = time.monotonic() + START_S
    while not client.admin.command("hello").get("isWritablePrimary"):
        assert time.monotonic() < end, "the replica set has no primary"
        time.sleep(0.05)


@contextlib.contextmanager
def own_server(*extra: str, kind: str = "") -> Iterator[MongoServer]:
    """A server for one test, which may do to it what it likes. `extra` are options of a server of this kind."""
    with tempfile.TemporaryDirectory(prefix="ms-mongo-", ignore_cleanup_errors=True) as folder:
        server = MongoServer(Path(folder), *extra, kind=kind)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@functools.cache
def mongo_address() -> str:
    """Where this test run's server is (without a database): started at the first call, ended with the process."""
    if url := os.environ.get("MONGO_URL"):
        atexit.register(_drop_databases, url)
        return url.rstrip("/")
    ends = contextlib.ExitStack()
    server = ends.enter_context(own_server())
    atexit.register(ends.close)
    return server.url


def with_database(address: str, name: str, options: str = "") -> str:
    """The address of a database on a server."""
    base, _, query = address.partition("?")
    joined = "&".join(part for part in (query, options) if part)
    scheme, _, rest = base.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{name}" + (f"?{joined}" if joined else "")


def new_database(options: str = "") -> str:
    """The address of a database that nobody has used."""
    return with_database(mongo_address(), f"{_OWN}{next(_numbers)}", options)


def _drop_databases(url: str) -> None:
    """A server that was there before is left as it was."""
    client: Any = MongoClient(url)
    for name in client.list_database_names():
        if name.startswith(_OWN):
            client.drop_database(name)
    client.close()
