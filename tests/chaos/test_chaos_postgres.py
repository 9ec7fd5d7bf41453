"""A primary, its synchronous standby and three nodes, while nodes, networks and servers fail (`make chaos`).

When the primary is killed its standby takes over, and what was the primary comes back as the standby of the new one. So
each kill of a primary is a failover under load, and nothing that was acknowledged before it may be missing after it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.chaos.arena import Arena
from tests.chaos.rounds import SECONDS, SEEDS, what_went_wrong
from tests.support.postgres import Postgres, running_postgres
from tests.support.processes import eventually

_SETTINGS = ("wal_level=replica", "max_wal_senders=4", "hot_standby=on", "max_connections=100")
_WRONG = {
    "statement_timeout": "'5ms'",
    "lock_timeout": "'5ms'",
    "idle_in_transaction_session_timeout": "'5ms'",
    "default_transaction_isolation": "'serializable'",
}


class PostgresServers:
    """Both servers as an arena sees them: by number, whichever of them is the primary."""

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self._servers = [primary, standby]
        self._primary = 0
        self._killed: list[int] = []
        self.failovers = 0
        self.places = [("127.0.0.1", server.port) for server in self._servers]
        self._be_followed()

    def url(self, places: Sequence[tuple[str, int]]) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in places)
        return f"postgresql://{self._servers[0].user}@{hosts}/postgres"

    def kill(self, number: int) -> None:
        """The first time, the primary: a round without a failover would show little."""
        number = number if self.failovers else self._primary
        self._killed.append(number)
        self._servers[number].stop()
        if number == self._primary:
            self._primary = 1 - number
            self.failovers += 1
            self._servers[self._primary].promote()
            self._sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    def restart(self, number: int) -> None:
        """A standby goes on; one that was the primary begins again as a copy of the new one."""
        server = self._servers[self._killed.pop()]
        shutil.rmtree(server.folder / "data")
        server.make_standby_of(self._servers[self._primary], "standby")
        server.start(*_SETTINGS)
        self._be_followed()

    def pause(self, number: int) -> None:
        self._servers[number].signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._servers[number].signal(signal.SIGCONT)

    async def edit(self, wrongly: bool) -> bool:
        """Settings that would break a log which trusted them; and every connection is ended, so that all are new."""
        try:
            sql = await asyncpg.connect(self._servers[self._primary].url("postgres"), timeout=5)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        try:
            for name, value in _WRONG.items():
                change = f"SET {name} = {value}" if wrongly else f"RESET {name}"
                await sql.execute(f"ALTER DATABASE postgres {change}")
            await sql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        except (asyncpg.PostgresError, OSError):
            return False
        finally:
            sql.terminate()
        return True

    # -- how

    def _be_followed(self) -> None:
        """From now on the primary acknowledges what its standby has on its disk, too."""
        self._sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
        followed = "SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication"
        eventually(lambda: bool(self._sql(followed)), "the standby to follow")

    def _sql(self, *statements: str) -> Any:
        """What the last statement gives, asked of the primary."""

        async def ask() -> Any:
            sql = await asyncpg.connect(
                self._servers[self._primary].url("postgres"), server_settings={"statement_timeout": "0"}
            )
            try:
                found = None
                for statement in statements:
                    found = await sql.fetchval(statement)
                return found
            finally:
                sql.terminate()

        return asyncio.run(ask())


@pytest.fixture
def servers() -> Iterator[PostgresServers]:
    with running_postgres(*_SETTINGS) as primary, running_postgres(*_SETTINGS, standby_of=primary) as standby:
        yield PostgresServers(primary, standby)


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_faults_and_failovers_break_no_promise(servers: PostgresServers, tmp_path: Path, seed: int) -> None:
    wrong = await what_went_wrong(Arena(tmp_path, servers, seed=seed), SECONDS)
    assert not wrong, wrong
    assert servers.failovers
