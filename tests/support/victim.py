"""A real node that is attacked: what it costs the node, and whether an innocent client is served meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.access import make_token
from tests.support.client_node import Node

READER, READER_TOKEN = make_token("reader", "subscribe:orders.**")
PUBLISHER, PUBLISHER_TOKEN = make_token("publisher", "publish:orders.**", "subscribe:orders.**")
NOBODY, NOBODY_TOKEN = make_token("nobody", "publish:nowhere")
OPS, OPS_TOKEN = make_token("ops", "admin")
TOKENS = ",".join(token.line() for token in (READER_TOKEN, PUBLISHER_TOKEN, NOBODY_TOKEN, OPS_TOKEN))

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Victim(Node):
    """A node in a process of its own, measured from outside."""

    def cpu_s(self) -> float:
        """Seconds of CPU the node has used, all its threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mb(self) -> float:
        """Memory the node uses now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        patience_s: float = 60.0,
    ) -> Answer:
        """One request on a connection of its own; `body` is bytes, or sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience_s)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @contextmanager
    def spending_at_most(self, cpu_s: float, grows_mb: float = 200.0) -> Iterator[Innocent]:
        """What happens in the block costs the node no more than this, and an innocent client is served all the time."""
        cpu, rss = self.cpu_s(), self.rss_mb()
        innocent = Innocent(self)
        innocent.start()
        try:
            yield innocent
        finally:
            innocent.stop()
        assert not innocent.failures, innocent.failures
        assert innocent.answers
        spent, grown = self.cpu_s() - cpu, self.rss_mb() - rss
        assert spent - innocent.answers * 0.01 < cpu_s, f"{spent:.1f} s of CPU"
        assert grown < grows_mb, f"{grown:.0f} MB more"


class Innocent(threading.Thread):
    """Publishes one event after the other; every one is answered, or it is a failure."""

    def __init__(self, node: Victim) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._ended = threading.Event()
        self.answers = 0
        self.longest_s = 0.0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set() or not self.answers:
            begun = time.monotonic()
            try:
                answer = self._node.ask("POST", "/topics/innocent/events", {"payload": self.answers}, OPS)
            except OSError as error:
                self.failures.append(repr(error))
                return
            if answer.status != 201:
                self.failures.append(f"{answer.status} {answer.body[:200]!r}")
                return
            self.answers += 1
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self._ended.wait(0.02)

    def stop(self) -> None:
        self._ended.set()
        self.join(60)
        if self.is_alive():
            self.failures.append("the innocent client was not answered")


@contextmanager
def attacked(
    folder: Path, *arguments: str, tokens: bool = True, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[Victim]:
    """A node with the tokens above, or with none."""
    given = {**({"MAINSPRING_TOKENS": TOKENS} if tokens else {}), **(env or {})}
    with Victim(*arguments, folder=folder, env=given, **options) as node:
        assert isinstance(node, Victim)
        yield node
