"""A real PostgreSQL for the tests: Debian's package, a cluster of its own in a temporary folder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = "postgres"
PATIENCE_S = 60


def binaries() -> Path | None:
    """Where `initdb` is: Debian keeps it off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def ensure_binaries() -> Path:
    """PostgreSQL's programs; where CI is set they are installed, elsewhere the tests that need them are skipped."""
    found = binaries()
    if found is None and os.environ.get("CI") == "true":
        quiet = {"DEBIAN_FRONTEND": "noninteractive", **os.environ}
        subprocess.run(["apt-get", "update", "-q"], env=quiet, check=True, capture_output=True)
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql"]
        subprocess.run(install, env=quiet, check=True, capture_output=True)
        found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return found


class Postgres:
    """One cluster. `url(name)` is the address of a database."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.port = _free_port()
        self._as_user = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
        self.user = USER if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as_user, str(self.programs / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def make(self) -> None:
        if os.getuid() == 0:
            shutil.chown(self.folder, USER)
        self._run("initdb", "-D", "data", "-A", "trust", "-U", self.user, "-E", "UTF8", "--no-sync", "--no-locale")

    def start(self, *settings: str) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c shared_buffers=8MB"
        options += "".join(f" -c {setting}" for setting in settings)
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")

    def make_standby_of(self, primary: Postgres, name: str) -> None:
        """A copy of a running server that follows it as soon as it is started."""
        if os.getuid() == 0:
            shutil.chown(self.folder, USER)
        source = f"host=127.0.0.1 port={primary.port} user={self.user} application_name={name}"
        self._run("pg_basebackup", "-d", source, "-D", "data", "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def promote(self) -> None:
        """From standby to primary."""
        self._run("pg_ctl", "-D", "data", "-w", "promote")

    def signal(self, number: signal.Signals) -> None:
        """To the server and each of its processes."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                own, parent = int(status.parent.name), int(status.read_text().rpartition(")")[2].split()[1])
                if postmaster in (own, parent):
                    os.kill(own, number)

    def kill(self) -> None:
        """`kill -9` of all its processes. What says that they run goes, too: nobody may have reaped them yet."""
        self.signal(signal.SIGKILL)
        (self.folder / "data" / "postmaster.pid").unlink()
        (self.folder / f".s.PGSQL.{self.port}.lock").unlink()

    def stop(self) -> None:
        """At once, as if its machine lost power."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")


@contextlib.contextmanager
def running_postgres(*settings: str, standby_of: Postgres | None = None, start: bool = True) -> Iterator[Postgres]:
    """A server of its own; with `standby_of` one that follows another, named `standby`."""
    programs = ensure_binaries()
    folder = Path(
        tempfile.mkdtemp(prefix="ms-pg-")
    )  # a TemporaryDirectory would be gone before a server that ends last
    server = Postgres(folder, programs)
    try:
        if standby_of is None:
            server.make()
        else:
            server.make_standby_of(standby_of, "standby")
        if start:
            server.start(*settings)
        try:
            yield server
        finally:
            with contextlib.suppress(AssertionError):  # a test has stopped it
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_pgbouncer(server: Postgres) -> Iterator[int]:
    """A pooler in transaction mode in front of a server; its port."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    folder = Path(tempfile.mkdtemp(prefix="ms-pgb-"))
    port = _free_port()
    (folder / "users.txt").write_text(f'"{server.user}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users.txt\n"
        "pool_mode = transaction\ndefault_pool_size = 4\n"
    )
    as_user = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(folder, USER)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*as_user, program, str(folder / "pgbouncer.ini")], stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "PgBouncer ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError("PgBouncer does not listen")


_numbers = itertools.count(1)


@functools.cache
def shared_postgres() -> Postgres:
    """One server for all tests of this process. It does not wait for its disk: nothing cuts its power."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running_postgres("fsync=off", "full_page_writes=off"))


def new_log() -> str:
    """The address of a log that does not exist yet."""
    return f"{shared_postgres().url('postgres')}?schema=log_{os.getpid()}_{next(_numbers)}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
