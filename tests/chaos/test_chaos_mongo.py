"""Three nodes on one server that speaks MongoDB's protocol, while nodes, their networks and the server fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.rounds import SECONDS, SEEDS, what_went_wrong
from tests.support.mongo_server import MongoServer, own_server

_EVENTS_OF_EACH = 200  # at most, of two publishers; faults cost some of them


class MongoServers:
    """One server: it can be killed and paused, and every node has its own network to it."""

    def __init__(self, server: MongoServer) -> None:
        self._server = server
        self.places = [("127.0.0.1", server.port)]

    def url(self, places: Sequence[tuple[str, int]]) -> str:
        ((host, port),) = places
        # FerretDB looks through the whole journal for each entry, so a long one would make everything slow. It is kept
        # for longer than a node is ever paused.
        return f"mongodb://{host}:{port}/chaos?directConnection=true&keep_ms=12000"

    def kill(self, number: int) -> None:
        self._server.kill()

    def restart(self, number: int) -> None:
        self._server.start()

    def pause(self, number: int) -> None:
        self._server.pause()

    def resume(self, number: int) -> None:
        self._server.resume()

    async def edit(self, wrongly: bool) -> bool:
        return False


@pytest.fixture
def servers() -> Iterator[MongoServers]:
    with own_server() as server:
        yield MongoServers(server)


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_faults_break_no_promise(servers: MongoServers, tmp_path: Path, seed: int) -> None:
    # FerretDB makes some hundred commits a second, and one event is several of them on its way. It looks through a
    # whole collection for nearly every write, so each event makes all later ones slower: a round publishes about as
    # much however long it lasts, and a long one has more faults.
    pace_s = max(0.1, SECONDS / _EVENTS_OF_EACH)
    wrong = await what_went_wrong(Arena(tmp_path, servers, seed=seed, lease_ms=2_500, pace_s=pace_s), SECONDS)
    assert not wrong, wrong
