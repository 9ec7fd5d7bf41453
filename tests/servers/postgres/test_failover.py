"""A primary that is lost and a standby that takes its place: the same for nodes as a server that was away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, EngineSetup, LogGone, LogMissing, Receipt
from mainspring.log.engines.postgres import FACTORY, PostgresEngine
from mainspring.log.engines.sqlite import SqliteEngine
from mainspring.testing import serving
from tests.support.client_node import eventually
from tests.support.in_process import mainspring
from tests.support.postgres import Postgres, running_postgres

_PRIMARY = ("wal_level=replica", "max_wal_senders=4", "hot_standby=on")


def address(*servers: Postgres) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{servers[0].user}@{hosts}/postgres?patience_ms=30000"


def made(url: str, folder: Path) -> PostgresEngine:
    engine = FACTORY.open(url, EngineSetup(folder))
    assert isinstance(engine, PostgresEngine)
    return engine


async def commit(engine: PostgresEngine, name: str) -> Receipt:
    (result,) = await engine.commit([Batch([Append("t", 0, name, 1, b"1", dedupe=name, dedupe_until=9)])])
    assert isinstance(result, Receipt), result
    return result


async def test_with_a_synchronous_standby_nothing_acknowledged_is_lost_doubled_or_reordered() -> None:
    with running_postgres(*_PRIMARY) as primary, running_postgres(standby_of=primary) as standby:
        sql = await asyncpg.connect(primary.url("postgres"))
        await sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        await sql.execute("SELECT pg_reload_conf()")

        async def synchronous() -> bool:
            return bool(await sql.fetchval("SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication"))

        await eventually(synchronous)
        await sql.close()
        nodes = [PostgresEngine(address(primary, standby)) for _ in range(3)]
        for node in nodes:
            await node.open()
        assert "synchronous standbys" in (await nodes[0].durability()).statement
        acked: list[tuple[int, str]] = []
        enough = 30

        async def load(node: PostgresEngine, letter: str) -> None:
            for n in range(enough):
                receipt = await commit(node, f"{letter}{n}")
                acked.append((receipt.offsets[0][1], f"{letter}{n}"))

        loads = [asyncio.create_task(load(node, letter)) for node, letter in zip(nodes, "abc", strict=True)]

        async def half() -> bool:
            return len(acked) > 20 or any(task.done() for task in loads)

        await eventually(half)
        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(standby.promote)
        new = await asyncpg.connect(standby.url("postgres"))
        await new.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await new.execute("SELECT pg_reload_conf()")
        await new.close()
        await asyncio.gather(*loads)
        found = await nodes[1].read("t", 0, 1, 1_000)
        assert [(event.offset, event.id) for event in found] == sorted(acked)
        assert [event.offset for event in found] == list(range(1, 3 * enough + 1))
        for letter in "abc":
            assert [e.id for e in found if e.id[0] == letter] == [f"{letter}{n}" for n in range(enough)]
        for node in nodes:
            await node.close()


async def test_a_standby_that_lacks_acknowledged_commits_is_noticed_and_what_it_lacks_is_kept(tmp_path: Path) -> None:
    with running_postgres(*_PRIMARY) as primary:
        node = PostgresEngine(address(primary))
        await node.open()
        await commit(node, "old")
        await node.close()
        with running_postgres(standby_of=primary, start=False) as copy:
            node = made(address(primary, copy), tmp_path)
            await node.open()
            await commit(node, "lost")  # acknowledged by the primary alone
            failed: list[BaseException] = []
            node.on_failure(failed.append)
            await asyncio.to_thread(primary.stop)
            await asyncio.to_thread(copy.start)
            await asyncio.to_thread(copy.promote)
            with pytest.raises(LogGone, match="another history"):
                await commit(node, "next")
            assert isinstance(failed[0], LogGone)
            await node.close()
            kept = SqliteEngine(tmp_path / "postgresql-mainspring.sqlite3.replaced-1", read_only=True)
            await kept.open()
            assert [(event.offset, event.id) for event in await kept.read("t", 0, 1, 9)] == [(2, "lost")]
            await kept.close()
            again = PostgresEngine(address(copy))
            await again.open()
            assert (await commit(again, "next")).offsets == ((0, 2, False),)
            await again.close()


async def test_a_server_set_back_that_others_wrote_to_is_noticed_and_what_it_lost_is_published_again(
    tmp_path: Path,
) -> None:
    """The log is longer than the node has seen by the time it looks, because another node wrote."""
    with running_postgres(*_PRIMARY) as primary:
        node = made(address(primary), tmp_path / "a")
        await node.open()
        await commit(node, "old")
        with running_postgres(standby_of=primary, start=False) as copy:
            for n in range(3):
                await commit(node, f"lost-{n}")
            failed: list[MainspringError] = []
            node.on_failure(failed.append)
            await asyncio.to_thread(primary.stop)
            await asyncio.to_thread(copy.start)
            await asyncio.to_thread(copy.promote)
            other = PostgresEngine(address(copy))
            await other.open()
            for n in range(9):
                await commit(other, f"new-{n}")
            await other.close()
            await asyncio.to_thread(copy.stop)
            copy.port = primary.port  # where the node looks for its server
            await asyncio.to_thread(copy.start)

            async def noticed() -> bool:
                return bool(failed)

            await eventually(noticed)
            assert "another history" in failed[0].message
            assert f"{node._node}:4 here" in failed[0].message
            assert f"{other._node}:3 there" in failed[0].message
            with pytest.raises(LogGone):
                await commit(node, "refused")
            await node.close()
            await recover(tmp_path / "a" / "postgresql-mainspring.sqlite3.replaced-1", address(copy), tmp_path)
            again = PostgresEngine(address(copy))
            await again.open()
            found = [event.id for event in await again.read("t", 0, 1, 99)]
            assert found == ["old", *(f"new-{n}" for n in range(9)), *(f"lost-{n}" for n in range(3))]
            await again.close()


async def recover(kept: Path, url: str, folder: Path) -> None:
    """As an operator does, twice: the second time stores nothing."""
    shown = await asyncio.to_thread(mainspring, "engine", "compare", str(kept), url, code=3)
    assert "only left: 4 lost-2" in shown.stdout
    async with serving(engine=url, data=str(folder / "serving")) as served:
        for _ in range(2):
            to = ("--compare-with", url, "--url", served.url, "--yes")
            await asyncio.to_thread(mainspring, "engine", "recover", str(kept), *to)


async def test_a_schema_dropped_under_a_running_node_stops_it_and_what_it_wrote_is_kept(tmp_path: Path) -> None:
    with running_postgres() as server:
        node = made(address(server), tmp_path)
        await node.open()
        await commit(node, "e")
        failed: list[MainspringError] = []
        node.on_failure(failed.append)
        sql = await asyncpg.connect(server.url("postgres"))
        await sql.execute("DROP SCHEMA mainspring CASCADE")
        with pytest.raises(LogGone, match="gone") as refused:
            await commit(node, "next")
        assert "--begin-anew" in refused.value.remedy
        assert isinstance(failed[0], LogGone)
        await node.close()
        assert not await sql.fetchval("SELECT to_regnamespace('mainspring') IS NOT NULL")
        await sql.close()
        kept = SqliteEngine(tmp_path / "postgresql-mainspring.sqlite3.replaced-1", read_only=True)
        await kept.open()
        assert [event.id for event in await kept.read("t", 0, 1, 9)] == ["e"]
        await kept.close()


async def test_a_dropped_schema_is_not_begun_anew_by_a_node_that_was_part_of_it(tmp_path: Path) -> None:
    with running_postgres() as server:
        node = made(address(server), tmp_path)
        await node.open()
        await commit(node, "e")
        await node.close()
        sql = await asyncpg.connect(server.url("postgres"))
        await sql.execute("DROP SCHEMA mainspring CASCADE")
        await sql.close()
        setup = EngineSetup(tmp_path)
        with pytest.raises(LogMissing, match="was part of one") as refused:
            await made(address(server), tmp_path).open()
        assert "--begin-anew" in refused.value.remedy
        with pytest.raises(LogMissing):
            await FACTORY.init(address(server), setup)
        found = await FACTORY.inspect(address(server), setup)
        assert (found.log, found.gone) == (False, True)
        assert await FACTORY.init(address(server), EngineSetup(tmp_path, begin_anew=True))
        node = made(address(server), tmp_path)
        await node.open()
        assert (await commit(node, "e")).offsets == ((0, 1, False),)
        await node.close()
