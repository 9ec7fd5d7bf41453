"""Getting in: passwords, tokens, keys and certificates, with servers that really ask for them."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest
import trustme

from mainspring.errors import MainspringError, SettingError
from mainspring.log import Batch, LogUnavailable, Put, open_engine
from mainspring.log.engines.nats.snapshots import TrimmingRules
from tests.support.fixtures.nats import OpenNode, everything, found
from tests.support.nats_server import NatsServer


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that is started by the test, once it said what it asks for."""
    server = NatsServer(tmp_path / "server")
    yield server
    server.kill()


async def why_not(url: str, tmp_path: Path) -> MainspringError:
    with pytest.raises(MainspringError) as refusal:
        await open_engine(url, tmp_path / "refused").open()
    return refusal.value


async def test_user_and_password(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    guarded.more = 'authorization { user: "ann", password: "p@ss:word" }'
    guarded.start()
    guarded.login = "ann:p%40ss%3Aword@"
    assert await (await node(guarded.url())).publish("x") == 1
    guarded.login = "ann:wrong@"
    error = await why_not(guarded.url(patience=1), tmp_path)
    assert isinstance(error, SettingError)
    assert "wrong" not in str(error)
    guarded.login = ""
    assert isinstance(await why_not(guarded.url(patience=1), tmp_path), SettingError)


async def test_a_token(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    guarded.more = 'authorization { token: "s3cret" }'
    guarded.start()
    guarded.login = "s3cret@"
    assert await (await node(guarded.url())).publish("x") == 1
    guarded.login = ""
    assert await (await node(guarded.url(token="s3cret"), "b")).publish("y") == 2
    assert isinstance(await why_not(guarded.url(token="other"), tmp_path), SettingError)


async def test_a_key(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    guarded.more = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    guarded.start()
    (tmp_path / "seed").write_bytes(seed)
    assert await (await node(guarded.url(nkey=tmp_path / "seed"))).publish("x") == 1
    assert isinstance(await why_not(guarded.url(), tmp_path), SettingError)


class Key:
    """A key of the kind NATS signs with, made of one number."""

    def __init__(self, kind: int, number: int) -> None:
        self.seed: bytes = nkeys.encode_seed(bytes([number]) * 32, kind)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def claim(self, subject: Key, kind: str, claims: dict[str, object]) -> str:
        """A JWT in which this key says something about another."""

        def part(content: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

        body = {"jti": kind, "iat": 1, "iss": self.public, "sub": subject.public, "name": kind}
        nats = {"nats": claims | {"type": kind, "version": 2}}
        text = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body | nats)}"
        return f"{text}.{base64.urlsafe_b64encode(self._pair.sign(text.encode())).decode().rstrip('=')}"


async def test_credentials(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    """The servers of large installations know only an operator, whose accounts issue credentials to users."""
    operator, system = Key(nkeys.PREFIX_BYTE_OPERATOR, 1), Key(nkeys.PREFIX_BYTE_ACCOUNT, 2)
    account, user = Key(nkeys.PREFIX_BYTE_ACCOUNT, 3), Key(nkeys.PREFIX_BYTE_USER, 4)
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
    storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    accounts = {
        system.public: operator.claim(system, "account", {"limits": limits}),
        account.public: operator.claim(account, "account", {"limits": limits | storage}),
    }
    preload = ", ".join(f"{public}: {token}" for public, token in accounts.items())
    guarded.more = (
        f"operator: {operator.claim(operator, 'operator', {})}\nsystem_account: {system.public}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {preload} }}"
    )
    guarded.start()
    token = account.claim(user, "user", {"subs": -1, "data": -1, "payload": -1})
    (tmp_path / "user.creds").write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    assert await (await node(guarded.url(creds=tmp_path / "user.creds"))).publish("x") == 1
    assert isinstance(await why_not(guarded.url(), tmp_path), SettingError)
    missing = await why_not(guarded.url(creds=tmp_path / "nobody.creds"), tmp_path)
    assert isinstance(missing, SettingError)
    assert "nobody.creds" in missing.message


async def test_a_user_with_no_more_rights_than_needed(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    """As the reference lists them; with snapshots, which need most."""
    subjects = [
        "mainspring.journal.test",
        "$JS.API.STREAM.*.MAINSPRING_test",
        "$JS.API.STREAM.MSG.GET.MAINSPRING_test",
        "$JS.API.CONSUMER.*.MAINSPRING_test",
        "$JS.API.CONSUMER.*.MAINSPRING_test.*",
        "$JS.API.CONSUMER.MSG.NEXT.MAINSPRING_test.*",
        "$O.MAINSPRING_test.>",
        "$JS.API.STREAM.*.OBJ_MAINSPRING_test",
        "$JS.API.STREAM.MSG.GET.OBJ_MAINSPRING_test",
        "$JS.API.STREAM.NAMES",
        "$JS.API.CONSUMER.CREATE.OBJ_MAINSPRING_test",
        "$JS.FC.OBJ_MAINSPRING_test.>",
    ]
    publish = ", ".join(f'"{subject}"' for subject in subjects)
    rights = f'{{ publish: [{publish}], subscribe: ["_INBOX.>"] }}'
    guarded.more = f'authorization {{ users: [ {{ user: "m", password: "p", permissions: {rights} }} ] }}'
    guarded.start()
    guarded.login = "m:p@"
    small = TrimmingRules(grown_bytes=20_000, keep_ms=0, claim_ms=5_000)
    one = await node(guarded.url(), "a", small)
    async with asyncio.timeout(30):
        while (await found(one)).first <= 1:
            for _ in range(20):
                await one.log.commit(Batch([Put("s", "k", b"v" * 500)]))
    two = await node(guarded.url(), "b", small)
    assert await everything(two.log) == await everything(one.log)


async def test_rights_that_are_missing_are_named(guarded: NatsServer, tmp_path: Path) -> None:
    rights = '{ publish: ["$JS.API.>"], subscribe: ["_INBOX.>"] }'
    guarded.more = f'authorization {{ users: [ {{ user: "m", password: "p", permissions: {rights} }} ] }}'
    guarded.start()
    guarded.login = "m:p@"
    engine = open_engine(guarded.url(patience=0.5), tmp_path)
    await engine.open()
    (result,) = await engine.commit([Batch([Put("s", "k", b"v")])])
    assert type(result) is LogUnavailable  # it was forbidden, so nothing was stored
    assert "mainspring.journal.test" in result.message
    await engine.close()
    guarded.more = guarded.more.replace("$JS.API.>", "mainspring.>")
    guarded.kill()
    guarded.start()
    assert "permissions violation" in str(await why_not(guarded.url(patience=0.5), tmp_path)).lower()


async def test_certificates_on_both_sides(guarded: NatsServer, tmp_path: Path, node: OpenNode) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for who, names in (("server", ["127.0.0.1"]), ("client", ["node@example.org"])):
        issued = authority.issue_cert(*names)
        issued.private_key_pem.write_to_path(tmp_path / f"{who}.key")
        for n, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(tmp_path / f"{who}.pem", append=n > 0)
    guarded.more = (
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", '
        f'ca_file: "{tmp_path}/ca.pem", verify: true }}'
    )
    guarded.start()
    guarded.scheme = "tls"
    ours = {"tls_ca": tmp_path / "ca.pem", "tls_cert": tmp_path / "client.pem", "tls_key": tmp_path / "client.key"}
    one = await node(guarded.url("test", **ours))
    assert await one.publish("x") == 1
    guarded.kill()
    guarded.start()
    assert await one.publish("y") == 2  # and in again after a restart

    unknown = await why_not(guarded.url(patience=1), tmp_path)
    assert isinstance(unknown, SettingError)
    assert "tls_ca" in unknown.remedy
    assert isinstance(await why_not(guarded.url(patience=1, tls_ca=tmp_path / "ca.pem"), tmp_path), LogUnavailable)
    missing = await why_not(guarded.url(tls_ca=tmp_path / "nothing.pem"), tmp_path)
    assert isinstance(missing, SettingError)


async def test_a_server_that_speaks_tls_is_understood_without_being_told(
    guarded: NatsServer, tmp_path: Path, node: OpenNode
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    guarded.more = f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.pem" }}'
    guarded.start()
    assert await (await node(guarded.url(tls_ca=tmp_path / "ca.pem"))).publish("x") == 1
    assert isinstance(await why_not(guarded.url(patience=1), tmp_path), SettingError)


async def test_nothing_is_said_to_a_server_without_tls_when_tls_is_asked_for(tmp_path: Path) -> None:
    """Neither by the scheme nor by naming an authority; a password would be read by whoever answers."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":1048576,"auth_required":true}\r\n'
        )
        heard.append(await reader.read())

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    for url in (
        f"tls://admin:s3cret@127.0.0.1:{port}/x?patience=1",
        f"nats://admin:s3cret@127.0.0.1:{port}/x?patience=1&tls_ca={authority}",
    ):
        error = await why_not(url, tmp_path)
        assert isinstance(error, SettingError)
        assert "does not offer TLS" in error.message
        assert "s3cret" not in str(error)
    listener.close()
    assert len(heard) >= 2
    assert b"".join(heard) == b""


async def test_a_real_server_without_tls_is_refused_and_one_that_only_offers_it_is_used(
    guarded: NatsServer, tmp_path: Path, node: OpenNode
) -> None:
    guarded.start()
    guarded.scheme = "tls"
    assert isinstance(await why_not(guarded.url(patience=1), tmp_path), SettingError)
    guarded.kill()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    guarded.more = f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}\nallow_non_tls: true'
    guarded.start()
    one = await node(guarded.url(tls_ca=tmp_path / "ca.pem"))
    assert await one.publish("x") == 1
    asked = await asyncio.to_thread(urllib.request.urlopen, f"{guarded.monitor}/connz")
    with asked as reply:
        assert all(each["tls_version"] for each in json.load(reply)["connections"])
