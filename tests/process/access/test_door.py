"""A node with tokens: who is let in over HTTP and WebSocket, and what everybody else is told."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from mainspring.app import App
from mainspring.loop import MonotonicClock
from mainspring.node import BootFailure
from mainspring.server import http
from tests.support.access import ALICE, BOB, LINES, ROOT, ROOT_TOKEN, Served, make_token, served

OPEN = {"/healthz", "/readyz"}
PLACES = {"topic": "orders", "group": "g", "schedule": "s", "partition": "0", "offset": "1", "version": "1"}


def operations() -> list[tuple[str, str]]:
    return [(operation.method, operation.path.format_map(_Filled())) for operation in http.OPERATIONS]


class _Filled(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return PLACES.get(name, "x")


async def test_every_operation_wants_a_token_but_health() -> None:
    async with served(tokens=LINES) as node:
        for method, path in operations():
            answer = await node.request(method, path, json={} if method == "POST" else None)
            if path in OPEN:
                assert answer.status == 200, path
                continue
            assert answer.status == 401, (method, path, answer)
            assert answer.headers["Content-Type"].startswith("application/problem+json")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert (answer.json["code"], bool(answer.json["remedy"])) == ("unauthorized", True)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        "Basic YWxpY2U6eA==",
        ALICE,
        f"Bearer {ALICE}x",
        f"Bearer {ALICE[:-1]}",
        "Bearer " + "x" * 5000,
    ],
)
async def test_a_wrong_token_is_401_and_is_not_repeated(header: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served(tokens=LINES) as node:
            answer = await node.get("/topics", headers={"Authorization": header})
            assert answer.status == 401
            assert header.removeprefix("Bearer").strip() in ("", "wrong") or header not in answer.body.decode()
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with node.session.ws_connect(node.url, headers={"Authorization": header}):
                    pass
            assert refused.value.status == 401
    assert ALICE not in caplog.text
    said = [record.getMessage() for record in caplog.records if record.name != "mainspring.loop"]  # names this test
    assert not any("wrong" in line for line in said)


async def test_a_token_says_who_and_what_over_http() -> None:
    async with served(tokens=LINES) as node:
        published = await node.post("/topics/orders/events", {"payload": 1, "headers": {"agent_id": "root"}}, ALICE)
        assert published.status == 201
        assert (await node.post("/topics/orders/events", {"payload": 1}, BOB)).status == 403
        assert (await node.post("/topics/other/events", {"payload": 1}, ALICE)).status == 403
        assert (await node.get("/topics/orders/events", BOB)).status == 200
        (event,) = (await node.get("/topics/orders/events", ROOT)).json["events"]
        assert event["headers"]["agent_id"] == "alice"
        assert "scopes" not in event["headers"], "what else a publisher may do is nobody's business"
        claimed = await node.post("/topics/orders/events?agent_id=alice", {"payload": 1}, BOB)
        assert claimed.status == 403, "a claim counts for nothing where there are tokens"
        assert (await node.get(f"/topics/orders/events?token={BOB}")).status == 200
        assert (await node.post(f"/topics/orders/events?token={ALICE}", {"payload": 1})).status == 401


async def test_cloudevents_cannot_say_who_published_them_either() -> None:
    async with served(tokens=LINES) as node:
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "agent_id": "root", "agentid": "root"}
        headers = {"Content-Type": "application/cloudevents+json"}
        data = json.dumps({name: value for name, value in event.items() if name != "agent_id"})
        answer = await node.request("POST", "/topics/orders/events", ALICE, data=data, headers=headers)
        assert answer.status == 201
        (stored,) = (await node.get("/topics/orders/events", ROOT)).json["events"]
        assert stored["headers"]["agent_id"] == "alice"


async def test_only_an_admin_changes_topics() -> None:
    async with served(tokens=LINES) as node:
        assert (await node.post("/topics", {"topic": "orders"}, ALICE)).status == 403
        assert (await node.post("/topics", {"topic": "orders", "publishACL": ["carol"]}, ROOT)).status == 201
        assert (await node.post("/topics/orders/events", {"payload": 1}, ALICE)).status == 403
        assert (await node.post("/topics", {"topic": "orders"}, ROOT)).status == 200, "an admin is not locked out"


async def test_a_token_sees_only_what_it_has_a_right_on() -> None:
    async with served(tokens=LINES) as node:
        for topic in ("orders", "payroll"):
            await node.post(f"/topics/{topic}/events", {"payload": 1}, ROOT)
        await node.post("/schedules", {"name": "pay", "topic": "payroll", "payload": 1, "every": 60_000}, ROOT)
        async with node.socket(ROOT) as socket:
            assert (await socket.subscribe("payroll"))["type"] == "OK"
        assert [each["topic"] for each in (await node.get("/topics", BOB)).json["topics"]] == ["orders"]
        assert (await node.get("/groups", BOB)).json["groups"] == []
        assert (await node.get("/schedules", BOB)).json["schedules"] == []
        for path in ("/topics/payroll", "/topics/payroll/offsets", "/groups/payroll/g", "/schedules/pay"):
            assert (await node.get(path, BOB)).status == 403, path
            assert (await node.get(path, ROOT)).status == 200, path


async def test_a_websocket_brings_its_token_in_any_of_three_ways() -> None:
    async with served(tokens=LINES) as node:
        async with node.socket(ALICE) as socket:
            assert (await socket.publish("orders"))["type"] == "PUBLISHED"
            assert (await socket.publish("other"))["code"] == "forbidden"
        async with node.socket(query=f"?token={ALICE}") as socket:
            assert (await socket.publish("orders"))["type"] == "PUBLISHED"
        async with node.socket(protocols=("mainspring", f"mainspring.token.{ALICE}")) as socket:
            assert socket.socket.protocol == "mainspring"
            assert (await socket.publish("orders"))["type"] == "PUBLISHED"
        async with node.socket(ALICE, query="?agent_id=root") as socket:
            assert (await socket.subscribe("orders"))["type"] == "OK"
            envelopes = [(await socket.next())["envelope"] for _ in range(3)]
        sessions = {envelope["headers"]["sid"] for envelope in envelopes}
        assert len(sessions) == 3, "each connection has an id of its own"
        assert {envelope["headers"]["agent_id"] for envelope in envelopes} == {"alice"}


async def test_a_token_offered_alone_is_neither_echoed_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served(tokens=LINES) as node:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with node.socket(protocols=(f"mainspring.token.{ALICE}",)):
                    pass
            assert refused.value.status == 400
        async with served() as node, node.socket(protocols=("mainspring", f"mainspring.token.{ALICE}")) as socket:
            assert socket.socket.protocol == "mainspring"
    assert ALICE not in caplog.text


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?agent_id=alice"])
async def test_a_websocket_without_a_token_is_401(query: str) -> None:
    async with served(tokens=LINES) as node:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with node.socket(query=query):
                pass
        assert refused.value.status == 401


async def test_a_connection_and_a_stream_end_with_their_token() -> None:
    soon = MonotonicClock().wall_ms() + 1_500
    text, token = make_token("carol", "subscribe:**", expires_ms=soon)
    async with served(tokens=(*LINES, token.line())) as node:
        await node.post("/topics/orders/events", {"payload": 1}, ROOT)
        async with node.socket(text) as socket:
            assert (await socket.subscribe("orders"))["type"] == "OK"
            stream = asyncio.ensure_future(node.get("/topics/orders/stream", text))
            assert (await socket.next())["type"] == "MESSAGE"
            closed = await socket.socket.receive(timeout=20)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
            with pytest.raises(aiohttp.ClientError):
                await stream
        assert (await node.get("/topics", text)).status == 401


async def test_a_line_taken_out_of_the_file_ends_what_its_token_holds_open(tmp_path: Path) -> None:
    text, token = make_token("carol", "subscribe:**")
    new_text, new = make_token("dave", "subscribe:**")
    file = tmp_path / "tokens"
    file.write_text(f"{ROOT_TOKEN.line()}\n{token.line()}\n")
    async with served(tokens_file=str(file)) as node:
        await node.post("/topics/orders/events", {"payload": 1}, ROOT)
        async with node.socket(text) as socket, node.socket(ROOT) as other:
            assert (await socket.subscribe("orders"))["type"] == "OK"
            assert (await socket.next())["type"] == "MESSAGE"
            stream = asyncio.ensure_future(node.get("/topics/orders/stream", text))
            file.write_text(f"{ROOT_TOKEN.line()}\n{new.line()}\n")
            closed = await socket.socket.receive(timeout=20)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
            with pytest.raises(aiohttp.ClientError):
                await stream
            assert (await node.get("/topics", text)).status == 401
            assert (await node.get("/topics", new_text)).status == 200
            assert (await other.publish("orders"))["type"] == "PUBLISHED", "a line that stayed is not disturbed"


async def test_origins_are_checked_with_tokens_too_and_any_host_name_may_lead_here() -> None:
    async with served(tokens=LINES) as node:
        assert (await node.get("/topics", ROOT, headers={"Origin": "https://evil.example"})).status == 403
        assert (await node.get("/topics", ROOT, headers={"Host": "bus.example.com"})).status == 200
    async with served() as node:
        assert (await node.get("/topics", headers={"Host": "bus.example.com"})).status == 403


async def test_a_program_brings_its_own_checker() -> None:
    async def checker(topic: str, action: str, who: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        return who["agent"] == "alice" or action == "subscribe"

    async with served(App("shop", checker=checker)) as node:
        assert (await node.post("/topics/t/events?agent_id=alice", {"payload": 1})).status == 201
        assert (await node.post("/topics/t/events?agent_id=bob", {"payload": 1})).status == 403
        assert (await node.get("/topics/t/events?agent_id=bob")).status == 200
        async with node.socket(query="?agent_id=bob") as socket:
            assert (await socket.publish("t"))["code"] == "forbidden"


async def test_more_connections_than_the_limit_are_refused_with_the_reason() -> None:
    async with served(max_connections=1) as node:
        async with node.socket():
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with node.socket():
                    pass
            assert refused.value.status == 503
        for _ in range(100):
            try:
                async with node.socket() as socket:
                    assert (await socket.publish("t"))["type"] == "PUBLISHED"
                break
            except aiohttp.WSServerHandshakeError:
                await asyncio.sleep(0.02)  # the node has not noticed yet that the first one left
        else:
            pytest.fail("the place of a connection that left was never free again")


# -- where the node listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
async def test_a_node_beyond_loopback_without_tokens_does_not_start_and_says_what_to_do(host: str) -> None:
    with pytest.raises(BootFailure) as refused:
        async with served(host=host):
            pass
    assert refused.value.code == "open_door"
    assert "mainspring token new" in refused.value.remedy


async def test_with_tokens_it_does() -> None:
    async with served(host="0.0.0.0", tokens=LINES) as node:
        assert (await node.get("/topics")).status == 401
        assert (await node.get("/topics", ROOT)).status == 200


async def test_tokens_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("\n".join(LINES))
    async with served(host="0.0.0.0", tokens_file=str(file)) as node:
        assert (await node.get("/topics", ROOT)).status == 200


async def test_a_line_that_is_no_line_stops_the_boot() -> None:
    with pytest.raises(BootFailure) as refused:
        async with served(tokens=("alice secret admin",)):
            pass
    assert refused.value.code == "bad_token"
    assert "secret" not in str(refused.value)


async def test_tls_on_the_port(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.private_key_pem.write_to_path(key)
    cert.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with served(ssl=trust, tls_cert=str(cert), tls_key=str(key), tokens=LINES) as node:
        assert node.url.startswith("https://")
        assert (await node.post("/topics/orders/events", {"payload": "x" * 200_000}, ALICE)).status == 201
        async with node.socket(ALICE) as socket:
            assert (await socket.subscribe("orders"))["type"] == "OK"
            assert len((await socket.next())["envelope"]["payload"]) == 200_000


@pytest.mark.parametrize("given", [("cert", ""), ("", "key"), ("missing", "missing"), ("nonsense", "nonsense")])
async def test_a_certificate_that_cannot_be_used_stops_the_boot_with_the_reason(
    given: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "nonsense").write_text("no PEM")
    cert, key = (str(tmp_path / name) if name else "" for name in given)
    with pytest.raises(BootFailure) as refused:
        async with served(tls_cert=cert, tls_key=key):
            pass
    assert "tls_cert" in refused.value.remedy
    assert "tls_key" in refused.value.remedy


async def fetch_all(node: Served) -> list[Any]:
    return [event["payload"] for event in (await node.get("/topics/orders/events", ROOT)).json["events"]]


async def test_refused_requests_store_nothing() -> None:
    async with served(tokens=LINES) as node:
        await node.post("/topics/orders/events", {"payload": "kept"}, ALICE)
        await node.post("/topics/orders/events", {"payload": "no token"})
        await node.post("/topics/orders/events", {"payload": "no right"}, BOB)
        async with node.socket(BOB) as socket:
            assert (await socket.publish("orders", "no right"))["code"] == "forbidden"
        assert await fetch_all(node) == ["kept"]


async def test_every_operation_on_a_topic_wants_a_right_on_it() -> None:
    """Whatever is done to a topic, its groups, letters, schemas and schedules: a token for other topics may not."""
    ours = {**PLACES, "topic": "payroll", "schedule": "pay"}
    bodies: dict[str, Any] = {"events": {"payload": 1}, "seek": {"kind": "latest"}, "drop": {"all": True}}
    bodies |= {key: {"schema": {"type": "object"}} for key in ("payroll", "check")}
    named = [each for each in http.OPERATIONS if {"{topic}", "{schedule}"} & set(each.path.split("/"))]
    about = [each for each in named if not each.path.endswith("/rights")]  # which says what one may not
    assert len(about) > 15
    async with served(tokens=LINES) as node:
        await node.post("/topics", {"topic": "payroll", "maxAttempts": 1}, ROOT)
        await node.post("/schedules", {"name": "pay", "topic": "payroll", "payload": 1, "every": 60_000}, ROOT)
        await node.post("/topics/payroll/events", {"payload": 1}, ROOT)
        async with node.socket(ROOT) as socket:
            assert (await socket.subscribe("payroll"))["type"] == "OK"
            refusal = {"type": "NACK", "topic": "payroll", "partition": 0, "group": "g", "offset": 1}
            await socket.socket.send_json({**refusal, "reason": "no"})
            letters: list[Any] = []
            while not letters:
                letters = (await node.get("/dlq/payroll", ROOT)).json["letters"]
        before = [(await node.get(path, ROOT)).json for path in ("/dlq/payroll", "/schedules/pay", "/topics/payroll")]
        for operation in about:
            path = operation.path.format_map(ours)
            body = bodies.get(path.rpartition("/")[2], {}) if operation.method == "POST" else None
            answer = await node.request(operation.method, path, BOB, json=body)
            assert answer.status == 403, (operation.method, path, answer)
        after = [(await node.get(path, ROOT)).json for path in ("/dlq/payroll", "/schedules/pay", "/topics/payroll")]
        assert after == before
