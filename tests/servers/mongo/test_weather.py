"""A server that is not there, goes away, says nothing, or does not let us in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from mainspring.errors import SettingError
from mainspring.log import Append, Batch, Change, EngineSetup, InDoubt, LogAccess, LogUnavailable, Receipt, Result
from mainspring.log.engines.mongo import FACTORY, MongoEngine
from mainspring.log.engines.mongo.connection import describe
from mainspring.loop import VirtualClock
from tests.support.mongo_server import MongoServer, free_port, own_server
from tests.support.proxy import Proxy

_SOON = "serverSelectionTimeoutMS=300"


def event(name: str) -> Append:
    return Append("t", 0, name, 1, b"1", dedupe=name, dedupe_until=99)


async def commit(engine: MongoEngine, name: str) -> Result:
    try:
        (result,) = await engine.commit([Batch([event(name)])])
    except LogUnavailable as error:
        return error
    return result


async def stored(engine: MongoEngine, name: str) -> None:
    """Published at last, whatever the weather: tried again as a careful publisher would."""
    for _ in range(200):
        result = await commit(engine, name)
        if isinstance(result, Receipt):
            return
        assert isinstance(result, LogUnavailable), result
    raise AssertionError("the log never came back")


async def ids(engine: MongoEngine) -> list[str]:
    return [found.id for found in await engine.read("t", 0, 1, 100)]


async def until(condition: Any, what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def proxy(server: MongoServer) -> AsyncIterator[Proxy]:
    proxy = await Proxy(server.port).start()
    yield proxy
    await proxy.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"weather_{abs(hash(request.node.name)) % 10**9}"


def direct(server: MongoServer, name: str, options: str = "") -> MongoEngine:
    return MongoEngine(f"{server.url}/{name}?directConnection=true&{_SOON}&{options}".rstrip("&"))


def through(proxy: Proxy, name: str, options: str = "", **more: Any) -> MongoEngine:
    url = f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true&{_SOON}&{options}"
    return MongoEngine(url.rstrip("&"), **more)


def answer_is_lost(proxy: Proxy) -> Callable[[str], None]:
    """The answer to the first insert into the journal never comes."""
    armed = True

    def step(write: str) -> None:
        nonlocal armed
        if armed and write == "journal":
            armed = False
            proxy.hold_answers()

    return step


class TestAtBoot:
    async def test_no_server_is_said_at_once_and_without_the_password(self) -> None:
        engine = MongoEngine(f"mongodb://user:secret@127.0.0.1:{free_port()}/x?{_SOON}")
        with pytest.raises(LogUnavailable, match="cannot be reached") as error:
            await engine.open()
        assert "secret" not in str(error.value)
        assert "127.0.0.1" in str(error.value)
        with pytest.raises(LogUnavailable):
            await FACTORY.init(f"mongodb://127.0.0.1:{free_port()}/x?{_SOON}", EngineSetup(Path()))

    async def test_it_opens_once_the_server_is_there(self, proxy: Proxy, name: str) -> None:
        proxy.cut()
        engine = through(proxy, name)
        with pytest.raises(LogUnavailable):
            await engine.open()
        with pytest.raises(LogUnavailable, match="not open"):
            await engine.commit([Batch([event("a")])])
        proxy.mend()
        await engine.open()
        assert isinstance(await commit(engine, "a"), Receipt)
        await engine.close()

    @pytest.mark.parametrize(
        "address",
        [
            "mongodb://",
            "mongodb:///x",
            "mongodb://h/a b",
            "mongodb://h/x?patience_ms=soon",
            "mongodb://h/x?patience_ms=0",
            "mongodb://h/" + "x" * 64,
        ],
    )
    def test_an_address_that_cannot_be_one_is_refused(self, address: str) -> None:
        with pytest.raises(SettingError):
            MongoEngine(address)

    async def test_options_the_driver_refuses_are_refused(self) -> None:
        with pytest.raises(SettingError):
            await MongoEngine("mongodb://h:notaport/x").open()

    def test_without_the_driver_the_extra_is_named(self) -> None:
        program = "import sys; sys.modules['pymongo'] = None; from mainspring.log import open_engine; "
        program += "open_engine('mongodb://h/x', '.')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "MissingExtra" in done.stderr
        assert "pip install 'mainspring[mongo]'" in done.stderr

    def test_the_database_comes_from_the_address_or_the_setting(self) -> None:
        assert MongoEngine("mongodb://h").address.database == "mainspring"
        assert MongoEngine("mongodb://h/", database="mine").address.database == "mine"
        engine = MongoEngine("mongodb://u:p@h1:1,h2/mine?w=1&patience_ms=5&replicaSet=rs", database="other")
        assert engine.address.database == "mine"
        assert engine.address.url == "mongodb://u:p@h1:1,h2/mine?w=1&replicaSet=rs"
        assert engine.address.patience_ms == 5


class TestLostWhileServing:
    async def test_a_commit_waits_out_a_short_loss(self, server: MongoServer, proxy: Proxy, name: str) -> None:
        engine, other = through(proxy, name), direct(server, name)
        await engine.open()
        await other.open()
        heard: list[Change] = []
        engine.watch(heard.append)
        proxy.cut()
        waiting = asyncio.create_task(commit(engine, "a"))
        assert isinstance(await commit(other, "b"), Receipt)
        await asyncio.sleep(0.5)
        proxy.mend()
        assert isinstance(await waiting, Receipt)
        assert await ids(engine) == ["b", "a"]
        assert [change.own for change in heard] == [False, True]
        for each in (engine, other):
            await each.close()

    async def test_a_long_loss_is_said_and_everything_resumes_by_itself(self, proxy: Proxy, name: str) -> None:
        engine = through(proxy, name, "patience_ms=200")
        await engine.open()
        assert isinstance(await commit(engine, "a"), Receipt)
        proxy.cut()
        result = await commit(engine, "b")
        assert isinstance(result, LogUnavailable)
        for _ in range(2):
            result = await commit(engine, "c")
            assert type(result) is LogUnavailable  # nothing was sent: certainly not stored
        assert await ids(engine) == ["a"]  # what is known here can be read
        with pytest.raises(LogUnavailable):
            await engine.get("s", "unknown here")
        proxy.mend()
        await stored(engine, "d")
        assert await engine.get("s", "unknown here") is None
        assert [i for i in await ids(engine) if i != "b"] == ["a", "d"]
        await engine.close()

    async def test_a_lost_answer_is_found_out(self, server: MongoServer, proxy: Proxy, name: str) -> None:
        """The commit is stored, the answer does not come, the connection breaks: still one event, one receipt."""
        engine, other = through(proxy, name, step=answer_is_lost(proxy)), direct(server, name)
        await engine.open()
        await other.open()
        heard: list[Change] = []
        other.watch(heard.append)
        waiting = asyncio.create_task(commit(engine, "a"))
        await until(lambda: heard, "the commit at the other engine")
        proxy.cut()
        proxy.mend()
        result = await waiting
        assert result == Receipt(((0, 1, False),))
        assert await ids(engine) == await ids(other) == ["a"]
        for each in (engine, other):
            await each.close()

    async def test_a_doubt_is_said_and_trying_again_stores_nothing_twice(
        self, server: MongoServer, proxy: Proxy, name: str
    ) -> None:
        impatient = "patience_ms=400&socketTimeoutMS=300"
        engine, other = through(proxy, name, impatient, step=answer_is_lost(proxy)), direct(server, name)
        await engine.open()
        await other.open()
        own: list[bool] = []
        engine.watch(lambda change: own.append(change.own))
        result = await commit(engine, "a")
        assert isinstance(result, InDoubt)
        proxy.cut()
        proxy.mend()
        await stored(engine, "a")
        await stored(engine, "b")
        assert await ids(engine) == ["a", "b"]
        assert isinstance(await commit(other, "c"), Receipt)
        assert await ids(other) == ["a", "b", "c"]
        assert own[:2] == [True, True]
        for each in (engine, other):
            await each.close()

    async def test_a_server_that_is_killed_again_and_again_loses_nothing_acknowledged(self) -> None:
        with own_server() as server:
            engines = [direct(server, "x", "patience_ms=1000") for _ in range(2)]
            for engine in engines:
                await engine.open()
            acknowledged: list[str] = []
            doubtful: list[str] = []
            stop = False

            async def publisher(engine: MongoEngine, name: str) -> None:
                n = 0
                while not stop:
                    n += 1
                    result = await commit(engine, f"{name}{n}")
                    if isinstance(result, Receipt):
                        acknowledged.append(f"{name}{n}")
                    elif isinstance(result, InDoubt):
                        doubtful.append(f"{name}{n}")
                    await asyncio.sleep(0.01)

            publishers = [asyncio.create_task(publisher(engine, f"p{k}-")) for k, engine in enumerate(engines)]
            for _ in range(3):
                before = len(acknowledged)
                await until(lambda b=before: len(acknowledged) > b + 5, "commits go on")  # type: ignore[misc]
                server.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(server.start)
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 5, "commits go on")
            stop = True
            await asyncio.gather(*publishers)
            late = direct(server, "x")
            await late.open()
            found = await late.read("t", 0, 1, 100_000)
            assert [each.offset for each in found] == list(range(1, len(found) + 1))
            names = [each.id for each in found]
            assert len(names) == len(set(names))
            assert set(acknowledged) <= set(names) <= set(acknowledged) | set(doubtful)
            for engine in (*engines, late):
                await engine.close()

    async def test_a_server_that_stands_still_is_waited_for(self) -> None:
        with own_server() as server:
            engine = direct(server, "x", "patience_ms=20000&socketTimeoutMS=400")
            await engine.open()
            assert isinstance(await commit(engine, "a"), Receipt)
            server.pause()
            waiting = asyncio.create_task(commit(engine, "b"))
            await asyncio.sleep(1)
            assert not waiting.done()
            server.resume()
            assert await waiting == Receipt(((0, 2, False),))
            assert await ids(engine) == ["a", "b"]
            await engine.close()

    async def test_a_node_that_was_away_too_long_cannot_write_into_the_past(
        self, server: MongoServer, proxy: Proxy, name: str
    ) -> None:
        clock = VirtualClock()
        awake = MongoEngine(f"{server.url}/{name}?directConnection=true", clock=clock)
        sleeper = through(proxy, name, "patience_ms=30000")
        await awake.open()
        await sleeper.open()
        assert isinstance(await commit(sleeper, "a"), Receipt)
        await sleeper.spaces()
        proxy.cut()
        for other in ("b", "c"):
            assert isinstance(await commit(awake, other), Receipt)
        await awake.spaces()
        await awake.tidying.round()
        clock.advance(600_000)
        await awake.tidying.round()
        proxy.mend()
        result = await commit(sleeper, "too late")
        assert isinstance(result, LogUnavailable)
        assert result.code == "missed_too_much"
        with pytest.raises(LogUnavailable, match="start it again"):
            await sleeper.get("s", "k")
        await sleeper.close()
        await sleeper.open()
        assert await ids(sleeper) == ["a", "b", "c"]
        await stored(sleeper, "d")
        for each in (awake, sleeper):
            await each.close()


class TestAccess:
    async def test_user_and_password(self) -> None:
        users = ("--test-enable-new-auth", "--setup-database=admin", "--setup-username=node", "--setup-password=s3cret")
        with own_server(*users, kind="ferretdb") as server:
            where = f"127.0.0.1:{server.port}/x?authSource=admin&authMechanism=SCRAM-SHA-256&{_SOON}"
            engine = MongoEngine(f"mongodb://node:s3cret@{where}")
            await engine.open()
            assert isinstance(await commit(engine, "a"), Receipt)
            await engine.close()
            for wrong in ("mongodb://node:wr0ng@", "mongodb://nobody:s3cret@"):
                with pytest.raises(LogAccess, match="refuses this user") as error:
                    await MongoEngine(wrong + where).open()
                assert "wr0ng" not in str(error.value)
                assert "s3cret" not in str(error.value)
            with pytest.raises(LogAccess):
                await MongoEngine(f"mongodb://127.0.0.1:{server.port}/x?{_SOON}").open()

    async def test_tls(self, tmp_path: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        files = {file: str(tmp_path / file) for file in ("ca", "stranger", "cert", "key")}
        authority.cert_pem.write_to_path(files["ca"])
        stranger.cert_pem.write_to_path(files["stranger"])
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(files["cert"])
        certificate.private_key_pem.write_to_path(files["key"])
        port = free_port()
        listen = (
            f"--listen-tls=127.0.0.1:{port}",
            f"--listen-tls-cert-file={files['cert']}",
            f"--listen-tls-key-file={files['key']}",
        )
        with own_server(*listen, kind="ferretdb"):
            where = f"mongodb://127.0.0.1:{port}/x?tls=true&{_SOON}"
            engine = MongoEngine(f"{where}&tlsCAFile={files['ca']}")
            await engine.open()
            assert isinstance(await commit(engine, "a"), Receipt)
            await engine.close()
            with pytest.raises(LogUnavailable, match="certificate verify failed"):
                await MongoEngine(f"{where}&tlsCAFile={files['stranger']}").open()
            with pytest.raises(SettingError):
                await MongoEngine(f"{where}&tlsCAFile={tmp_path}/none").open()


class TestDurability:
    async def test_a_server_says_what_its_acknowledgements_mean(self, server: MongoServer, name: str) -> None:
        engine = direct(server, name)
        await engine.open()
        said = await engine.durability()
        assert said.durable
        assert "MongoDB" in said.statement
        await engine.close()
        careless = direct(server, name, "w=1")
        await careless.open()
        said = await careless.durability()
        assert not said.durable
        assert "w=1" in said.statement
        await careless.close()

    @pytest.mark.parametrize(
        ("hello", "concern", "durable", "words"),
        [
            ({}, {"w": "majority", "j": True}, True, "one MongoDB server"),
            ({"setName": "rs", "hosts": ["a"]}, {"w": "majority", "j": True}, True, "its only member"),
            ({"setName": "rs", "hosts": ["a", "b", "c"]}, {"w": "majority", "j": True}, True, "2 of 3 members"),
            ({"msg": "isdbgrid"}, {"w": "majority", "j": True}, True, "sharded"),
            ({"setName": "rs"}, {"w": "majority", "j": False}, False, "journal=false"),
            ({"setName": "rs"}, {"w": 2, "j": True}, False, "w=2"),
        ],
    )
    def test_by_kind_of_server(self, hello: Any, concern: Any, durable: bool, words: str) -> None:
        said = describe(hello, concern)
        assert said.durable is durable
        assert words in said.statement
