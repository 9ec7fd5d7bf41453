"""A real `mainspring serve` process for tests: started, spoken to from outside, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE_S = 60.0  # how long to wait for what must come; never a measurement
OWN_NAMES = ("MAINSPRING_", "BUS_", "MONGO_")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_NAMES)}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


class Serving:
    """One node in a folder of its own. Use it as a context manager; `boot` is its first line."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        engine: str = "memory",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.folder = folder
        self._patience_s = patience_s
        # Unix socket paths are short; a test's own folder need not be.
        self._sockets = tempfile.TemporaryDirectory(prefix="ms-")
        self.kernel_socket = Path(self._sockets.name) / "k.sock"
        self.loop_socket = Path(self._sockets.name) / "l.sock"
        self.command = [
            sys.executable,
            "-m",
            "mainspring",
            "serve",
            *("--port", "0", "--data", str(folder / "data"), "--engine", engine),
            *("--kernel-socket", str(self.kernel_socket), "--loop-socket", str(self.loop_socket)),
            *arguments,
        ]
        self.env = clean_environment(env)
        self.process: subprocess.Popen[str] | None = None
        self.boot: dict[str, Any] = {}

    def __enter__(self) -> Serving:
        self.launch()
        assert self.boot.get("type") == "Sys.BootComplete", f"{self.boot}\n{self.errors()}"
        return self

    def launch(self) -> None:
        """Start and read the first line, whatever it says."""
        with open(self.folder / "stderr.txt", "ab") as errors:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.env, cwd=self.folder
            )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self._patience_s)
        line = self.process.stdout.readline() if ready else ""
        self.boot = json.loads(line) if line else {}

    @property
    def port(self) -> int:
        """The port the node really listens on, from its boot message."""
        (http,) = (one for one in self.boot["data"]["adapters"] if one.startswith("http:"))
        return int(http.rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def errors(self) -> str:
        return (self.folder / "stderr.txt").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait(PATIENCE_S)
            if self.process.stdout is not None:
                self.process.stdout.close()
        self._sockets.cleanup()


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: str, engine: str = "memory", env: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """A booted node, ended when the block ends."""
    with Serving(*arguments, folder=folder, engine=engine, env=env) as node:
        yield node
