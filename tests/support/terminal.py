"""Commands as people run them: real processes against a real node."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tests.support.serving import PATIENCE_S, Serving, clean_environment

T = TypeVar("T")


class Terminal:
    """Runs `mainspring` with BUS_URL set to one node."""

    def __init__(self, url: str) -> None:
        self.url = url

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return clean_environment({"BUS_URL": self.url, "TZ": "UTC", **(extra or {})})

    def run(
        self, *arguments: str, stdin: str | bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "mainspring", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment(env),
            timeout=60,
            check=False,
        )
        said, complained = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in complained, complained
        return subprocess.CompletedProcess(done.args, done.returncode, said, complained)

    def ok(self, *arguments: str, stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """What a command says that must succeed."""
        done = self.run(*arguments, stdin=stdin, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, stdin: str | bytes = b"") -> list[Any]:
        """The objects a command says with --json."""
        return [json.loads(line) for line in self.ok(*arguments, "--json", stdin=stdin).splitlines()]

    def fails(self, *arguments: str, stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> list[str]:
        """The lines of complaint of a command that must end with exit code 1."""
        done = self.run(*arguments, stdin=stdin, env=env)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        return done.stderr.splitlines()

    @contextlib.contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[Running]:
        """A command that goes on until it is ended."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", *arguments],
                stdin=options.get("stdin", subprocess.PIPE),
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment(),
            )
            try:
                yield Running(process, errors)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait(PATIENCE_S)
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        with contextlib.suppress(BrokenPipeError):
                            stream.close()


class Running:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Any) -> None:
        self.process = process
        self._errors = errors

    def line(self) -> str:
        """The next line it says."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, f"nothing was said\n{self.errors()}"
        said = b""
        while not said.endswith(b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, f"it ended\n{said!r}\n{self.errors()}"
            said += byte
        return said.decode().rstrip("\n")

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def errors(self) -> str:
        self._errors.seek(0)
        return str(self._errors.read().decode())

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        assert "Traceback" not in self.errors(), self.errors()
        return code


def url_of(node: Serving) -> str:
    return f"ws://127.0.0.1:{node.port}"


def until(look: Callable[[], T], good: Callable[[T], bool] = bool) -> T:
    """Look until it is good; what must come comes within the tests' patience."""
    end = time.monotonic() + PATIENCE_S
    while not good(found := look()):
        assert time.monotonic() < end, f"it did not come; last seen: {found!r}"
        time.sleep(0.05)
    return found
