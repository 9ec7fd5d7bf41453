"""Three NATS servers, three nodes, and whatever can go wrong with them (`make chaos`: for longer)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import nats
import nats.errors
import pytest

from tests.chaos.arena import Arena
from tests.chaos.rounds import SECONDS, SEEDS, what_went_wrong
from tests.support.nats_server import NatsCluster


class NatsServers:
    """The cluster as an arena sees it. Servers do not tell nodes of each other: every way leads over a proxy."""

    def __init__(self, folder: Path) -> None:
        self._cluster = NatsCluster(folder)
        for server in self._cluster.servers:
            server.cluster = server.cluster.replace("{", "{ no_advertise: true,", 1)
        self._cluster.start()
        self.places = [("127.0.0.1", server.port) for server in self._cluster.servers]

    def url(self, places: Sequence[tuple[str, int]]) -> str:
        return f"nats://{','.join(f'{host}:{port}' for host, port in places)}/chaos?replicas=3"

    def kill(self, number: int) -> None:
        self._cluster.servers[number].kill()

    def restart(self, number: int) -> None:
        self._cluster.servers[number].launch()

    def pause(self, number: int) -> None:
        self._cluster.servers[number].freeze()

    def resume(self, number: int) -> None:
        self._cluster.servers[number].thaw()

    async def edit(self, wrongly: bool) -> bool:
        """A limit of age: messages that nodes may still need would be dropped an hour later."""
        try:
            client = await nats.connect([f"nats://{host}:{port}" for host, port in self.places], connect_timeout=2)
            try:
                info = await client.jetstream().stream_info("MAINSPRING_chaos")
                await client.jetstream().update_stream(info.config, max_age=3_600 if wrongly else 0)
            finally:
                await client.close()
        except (nats.errors.Error, OSError):
            return False
        return True

    def end(self) -> None:
        self._cluster.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    servers = NatsServers(tmp_path / "nats")
    yield servers
    servers.end()


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_faults_break_no_promise(servers: NatsServers, tmp_path: Path, seed: int) -> None:
    wrong = await what_went_wrong(Arena(tmp_path, servers, seed=seed), SECONDS)
    assert not wrong, wrong
