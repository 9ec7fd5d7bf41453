"""Servers that refuse, cut connections, restart, or are behind a pooler: nothing is lost, doubled or left in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from mainspring import App, connect
from mainspring.client import NodeRefused
from mainspring.cluster import NotDurable, startup
from mainspring.errors import SettingError
from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    DamagedRecord,
    EngineSetup,
    FormatError,
    InDoubt,
    LogAccess,
    LogUnavailable,
    Put,
    Receipt,
    Result,
)
from mainspring.log.engines.postgres import FACTORY, PostgresEngine, tables
from mainspring.log.engines.postgres.connection import describe, parse_address
from mainspring.node import BootFailure
from mainspring.testing import serving
from tests.servers.postgres.conftest import OpenEngine
from tests.support.client_node import eventually
from tests.support.postgres import running_pgbouncer, running_postgres, shared_postgres
from tests.support.proxy import Proxy


def event(name: str) -> Append:
    return Append("t", 0, name, 1, b"1")


async def commit(engine: PostgresEngine, name: str) -> Result:
    try:
        (result,) = await engine.commit([Batch([event(name), Put("s", name, b"v")])])
    except LogUnavailable as error:
        return error
    return result


async def ids(engine: PostgresEngine) -> list[str]:
    return [found.id for found in await engine.read("t", 0, 1, 1_000)]


@pytest.mark.parametrize("write", ["records", "events", "commit"])
async def test_a_killed_connection_is_replaced_and_the_commit_happens_once(
    open_engine: OpenEngine, sql: Any, write: str
) -> None:
    kill: list[str] = []

    def step(name: str) -> None:
        if name in kill:
            kill.clear()
            engine._connections._writer.terminate()  # type: ignore[union-attr]

    engine = await open_engine(step=step)
    assert isinstance(await commit(engine, "a"), Receipt)
    kill.append(write)
    assert isinstance(await commit(engine, "b"), Receipt)
    assert isinstance(await commit(engine, "c"), Receipt)
    assert await ids(engine) == ["a", "b", "c"]
    assert engine.reconnects == 1


async def test_a_backend_terminated_by_an_operator_is_replaced(open_engine: OpenEngine, sql: Any) -> None:
    engine = await open_engine()
    assert isinstance(await commit(engine, "a"), Receipt)
    assert await sql.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    assert isinstance(await commit(engine, "b"), Receipt)
    assert await ids(engine) == ["a", "b"]


async def test_a_commit_whose_answer_is_lost_is_settled_by_asking(address: str, open_engine: OpenEngine) -> None:
    """The proxy lets COMMIT through and keeps the answer: the next connection finds the commit's row."""
    server = shared_postgres()
    proxy = await Proxy(server.port).start()
    armed = False

    def step(name: str) -> None:
        nonlocal armed
        if armed and name == "commit":
            armed = False
            proxy.hold_answers()
            asyncio.get_running_loop().call_later(0.1, cut)

    def cut() -> None:
        proxy.cut()
        proxy.mend()

    engine = await open_engine(at=address.replace(f":{server.port}/", f":{proxy.port}/"), step=step)
    assert isinstance(await commit(engine, "a"), Receipt)
    armed = True
    receipt = await commit(engine, "b")
    assert isinstance(receipt, Receipt)
    assert receipt.offsets == ((0, 2, False),)
    other = await open_engine()
    assert await ids(other) == ["a", "b"]
    await engine.close()
    await proxy.close()


async def test_in_doubt_only_while_the_server_stays_away(address: str, open_engine: OpenEngine) -> None:
    server = shared_postgres()
    proxy = await Proxy(server.port).start()
    armed = False

    def step(name: str) -> None:
        if armed and name == "commit":
            proxy.hold_answers()
            asyncio.get_running_loop().call_later(0.05, proxy.cut)

    at = address.replace(f":{server.port}/", f":{proxy.port}/")
    engine = await open_engine("patience_ms=2500", at=at, step=step)
    assert isinstance(await commit(engine, "a"), Receipt)
    armed = True
    assert isinstance(await commit(engine, "b"), InDoubt)
    assert type(await commit(engine, "c")) is LogUnavailable  # never sent
    armed = False
    proxy.mend()
    while not isinstance(result := await commit(engine, "d"), Receipt):
        assert isinstance(result, LogUnavailable)
    assert await ids(await open_engine()) in (["a", "b", "d"], ["a", "d"])
    await engine.close()
    await proxy.close()


@pytest.mark.parametrize(
    ("state", "passes"), [("53100", True), ("40001", True), ("40P01", True), ("57014", True), ("XX000", False)]
)
async def test_what_the_server_refuses_is_tried_again_where_that_can_help(
    address: str, open_engine: OpenEngine, sql: Any, state: str, passes: bool
) -> None:
    """A full disk, a serialization failure, a deadlock, a statement's timeout; and a defect, which is said at once."""
    engine = await open_engine("patience_ms=3000")
    assert isinstance(await commit(engine, "a"), Receipt)
    schema = address.rpartition("=")[2]
    await sql.execute(
        f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$"
    )
    await sql.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {schema}.chunks EXECUTE FUNCTION {schema}.refuse()")
    committing = asyncio.create_task(commit(engine, "b"))
    if passes:
        await asyncio.sleep(0.05)
        assert not committing.done()
        await sql.execute(f"DROP TRIGGER refuse ON {schema}.chunks")
        assert isinstance(await committing, Receipt)
        assert await ids(engine) == ["a", "b"]
    else:
        assert type(await committing) is LogUnavailable
        assert await ids(engine) == ["a"]


async def test_timeouts_of_the_role_do_not_apply_to_the_log(open_engine: OpenEngine, sql: Any, address: str) -> None:
    await sql.execute("DROP ROLE IF EXISTS hasty")
    await sql.execute("CREATE ROLE hasty LOGIN SUPERUSER")
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        await sql.execute(f"ALTER ROLE hasty SET {name} = 100")
    await sql.execute("ALTER ROLE hasty SET default_transaction_isolation = 'serializable'")
    server = shared_postgres()
    one = await open_engine(at=address.replace(f"//{server.user}@", "//hasty@"))
    two = await open_engine()
    async with sql.transaction():
        await sql.execute(f"SELECT pg_advisory_xact_lock({two.address.lock})")
        waiting = [asyncio.create_task(commit(engine, name)) for engine, name in ((one, "a"), (two, "b"))]
        await sql.execute("SELECT pg_sleep(0.3)")
    assert [type(await result) for result in waiting] == [Receipt, Receipt]


async def test_a_user_without_rights_is_told_so(sql: Any, address: str, open_engine: OpenEngine) -> None:
    await sql.execute("DROP ROLE IF EXISTS guest")
    await sql.execute("CREATE ROLE guest LOGIN")
    server = shared_postgres()
    with pytest.raises(LogAccess, match="refuses this user"):
        await open_engine(at=address.replace(f"//{server.user}@", "//guest@"))
    with pytest.raises(LogAccess, match="does not exist"):
        await open_engine(at=address.replace("/postgres?", "/nowhere?"))


async def test_tables_of_somebody_else_are_left_alone(sql: Any, address: str, open_engine: OpenEngine) -> None:
    schema = address.rpartition("=")[2]
    await sql.execute(f"CREATE SCHEMA {schema}")
    await sql.execute(f"CREATE TABLE {schema}.records (id int)")
    with pytest.raises(FormatError, match="not a log of Mainspring"):
        await open_engine()


async def test_newer_tables_are_used_as_long_as_they_allow_it(sql: Any, address: str, open_engine: OpenEngine) -> None:
    first = await open_engine()
    schema = address.rpartition("=")[2]
    await sql.execute(f"UPDATE {schema}.meta SET value = 7 WHERE name = 'version'")
    second = await open_engine()
    assert isinstance(await commit(second, "a"), Receipt)
    assert isinstance(await commit(first, "b"), Receipt)
    await sql.execute(f"UPDATE {schema}.meta SET value = 7 WHERE name = 'oldest'")
    with pytest.raises(FormatError, match="asks for programs of version 7"):
        await open_engine()


async def test_a_damaged_chunk_is_reported_and_never_served(sql: Any, address: str, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    for name in "abc":
        await commit(engine, name)
    schema = address.rpartition("=")[2]
    await sql.execute(f"UPDATE {schema}.chunks SET body = set_byte(body, 9, 0) WHERE last = 2")
    await sql.execute(f"UPDATE {schema}.records SET value = 'w' WHERE key = 'b'")
    reader = await open_engine()
    assert await ids(reader) == ["a"]
    with pytest.raises(DamagedEvent) as damaged:
        await reader.read("t", 0, 2, 9)
    assert damaged.value.offset == 2
    assert [e.id for e in await reader.read("t", 0, 3, 9)] == ["c"]
    with pytest.raises(DamagedRecord):
        await reader.get("s", "b")


async def test_a_server_that_crashes_and_restarts_keeps_every_acknowledged_commit() -> None:
    """A real one with its disk synced: killed at once, again and again, under load."""
    with running_postgres() as server:
        engine = PostgresEngine(server.url("postgres"))
        await engine.open()
        assert (await engine.durability()).durable
        acked: list[str] = []
        stop = False

        async def load() -> None:
            n = 0
            while not stop:
                n += 1
                result = await commit(engine, f"{n}")
                assert isinstance(result, Receipt), result
                acked.append(f"{n}")

        async def reached(count: int) -> None:
            async def enough() -> bool:
                return len(acked) >= count or loading.done()

            await eventually(enough)

        loading = asyncio.create_task(load())
        for count in (20, 40):
            await reached(count)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
        await reached(60)
        stop = True
        await loading
        assert await ids(engine) == acked
        await engine.close()


async def test_what_an_acknowledgement_means_is_asked_of_the_server(open_engine: OpenEngine, address: str) -> None:
    found = await (await open_engine()).durability()
    assert (found.durable, "fsync=off" in found.statement) == (False, True)
    sound = {"fsync": "on", "waits": "on", "pages": "on", "standbys": "", "connected": 0, "standby": False}
    assert describe(sound).durable
    assert "one PostgreSQL server" in describe(sound).statement
    assert not describe(sound | {"waits": "off"}).durable
    assert not describe(sound | {"pages": "off"}).durable
    assert "written to disk" in describe(sound | {"standbys": "ANY 1 (a, b)"}).statement
    assert "without being waited for" in describe(sound | {"connected": 2}).statement


async def test_a_pooler_in_transaction_mode_is_recognised_and_works(address: str, open_engine: OpenEngine) -> None:
    server = shared_postgres()
    with running_pgbouncer(server) as port:
        at = f"{address.replace(f':{server.port}/', f':{port}/')}&poll_ms=20"
        engines = [await open_engine(at=at), await open_engine(at=at), await open_engine()]
        reported: list[int] = []
        engines[1].watch(lambda change: reported.extend(each.last for each in change.appended))

        async def load(engine: PostgresEngine, letter: str) -> None:
            for n in range(10):
                assert isinstance(await commit(engine, f"{letter}{n}"), Receipt)
                assert await engine.get("s", f"{letter}{n}") is not None

        await asyncio.gather(*(load(engine, letter) for engine, letter in zip(engines, "abc", strict=True)))

        async def all_reported() -> bool:
            return reported == list(range(1, 31))

        await eventually(all_reported)
        for engine in engines:
            assert len(await ids(engine)) == 30
            await engine.close()


async def test_a_node_that_must_be_durable_does_not_start_on_a_server_that_is_not(address: str) -> None:
    with pytest.raises(BootFailure, match="fsync=off"):
        async with serving(engine=address, require_durable=True):
            pass
    async with (
        serving(engine=address) as served,
        aiohttp.ClientSession() as http,
        http.get(f"{served.http}/nodes") as answer,
    ):
        assert "fsync=off" in await answer.text()


def test_addresses() -> None:
    found = parse_address("postgres://shop:secret@db1:5432,db2:5432/shop?schema=log_7&patience_ms=500&sslmode=require")
    assert (found.schema, found.patience_ms) == ("log_7", 500)
    assert "secret" not in found.shown
    assert "sslmode=require" in found.url
    assert "target_session_attrs=read-write" in found.url
    assert "schema" not in found.url
    for wrong in ("postgresql://h/d?schema=A-b", "postgresql://h/d?patience_ms=soon", "mysql://h/d"):
        with pytest.raises(SettingError):
            parse_address(wrong)


async def test_durability_is_asked_again_while_a_node_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody eases the server's settings: a node says so, and one that must be durable ends."""
    monkeypatch.setattr(startup, "_ASK_AGAIN_MS", 10)
    with running_postgres() as server:
        sql = await asyncpg.connect(server.url("postgres"))
        url = server.url("postgres")
        async with serving(engine=url) as easy, serving(engine=url, require_durable=True) as strict:

            async def durable_is(wanted: bool) -> bool:
                async with aiohttp.ClientSession() as http, http.get(f"{easy.http}/nodes") as answer:
                    found: bool = (await answer.json())["engine"]["durable"]
                    return found is wanted

            assert await durable_is(True)
            await sql.execute("ALTER SYSTEM SET full_page_writes = off")
            await sql.execute("SELECT pg_reload_conf()")
            await eventually(lambda: durable_is(False))

            async def ended() -> bool:
                return isinstance(strict.node.failure, NotDurable)

            await eventually(ended)
            assert easy.node.failure is None
        await sql.close()


async def test_a_step_of_the_tables_is_made_beside_an_older_node(
    sql: Any, address: str, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the next version of Mainspring will do: its first node changes the tables, and older ones go on."""
    older = await open_engine()
    assert isinstance(await commit(older, "a"), Receipt)
    step = (2, 1, ("ALTER TABLE {s}.chunks ADD COLUMN note text", "CREATE TABLE {s}.notes (id int)"))
    monkeypatch.setattr(tables, "VERSION", 2)
    monkeypatch.setattr(tables, "STEPS", (*tables.STEPS, step))
    newer, another = await asyncio.gather(open_engine(), open_engine())  # at once: one of them makes the step
    for engine, name in ((newer, "b"), (older, "c"), (another, "d")):
        assert isinstance(await commit(engine, name), Receipt)
    for engine in (older, newer, another):
        assert await ids(engine) == ["a", "b", "c", "d"]
    schema = address.rpartition("=")[2]
    assert dict(await sql.fetch(f"SELECT name, value FROM {schema}.meta")) | {"settled": 0} == {
        "version": 2,
        "oldest": 1,
        "settled": 0,
    }
    assert await FACTORY.init(address, EngineSetup(Path())) == []  # there is nothing left to do


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 32 MB; only where one can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_server_whose_disk_is_full_stores_nothing_and_goes_on_when_there_is_room() -> None:
    """The database is on a small real file system, which somebody else fills."""
    with running_postgres() as server, small_disk(server.folder / "disk") as disk:
        place, filler = disk / "tables", disk / "filler"
        place.mkdir()
        shutil.chown(place, server.user)
        sql = await asyncpg.connect(server.url("postgres"))
        await sql.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        await sql.execute("CREATE DATABASE shop TABLESPACE small")
        await sql.close()
        settings = {"engine": f"{server.url('shop')}?patience_ms=2000"}
        async with serving(App("shop"), **settings) as node, connect(node.url) as bus:
            stored = {int(await bus.publish("orders", 0))}
            with filler.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 65_536)
                    file.flush()
            refused = None
            while refused is None or "No space left" not in str(refused):  # the pages that are there fill up first
                try:
                    body = {"payload": "x" * 60_000}
                    stored.add((await bus.http.call("POST", "/topics/orders/events", body, limit_s=None))["offset"])
                except NodeRefused as error:
                    refused = error
            assert refused.code == "unavailable"
            assert stored <= {event.offset async for event in bus.replay("orders")}  # reading goes on
            filler.unlink()
            stored.add(int(await bus.publish("orders", "again", timeout="60s")))
            found = [event.offset async for event in bus.replay("orders")]
            assert stored <= set(found)
            assert found == list(range(1, len(found) + 1))
