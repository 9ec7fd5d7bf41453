"""NDJSON over TCP, as who speaks to Redis or NATS with a line-based client expects it.

Off unless asked for. On this machine it needs nothing; where the node has tokens, the first line shows one; beyond this
machine nobody is let in without. A token may do over a line what it may do over HTTP. No page in a browser can send
lines. What the lines themselves do is tested on the socket and on the port alike, in `test_kernel_ndjson`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from mainspring import App
from mainspring.errors import SettingError
from mainspring.node.core import BootFailure
from mainspring.server import listen_address
from tests.support.access import LINES as ACCESS_LINES
from tests.support.access import ROOT, Served, make_token, served
from tests.support.kernel import Client, command, encoded, message, ping, query

CLERK, CLERK_TOKEN = make_token("clerk", "command:Stock.*", "query:Stock.*", "command:Event.Subscribe")
READER, READER_TOKEN = make_token("reader", "query:Memory.*", "command:Event.Subscribe")
TOKENS = (*ACCESS_LINES, CLERK_TOKEN.line(), READER_TOKEN.line())


def shop() -> App:
    app = App("shop")

    @app.command("Stock.Reserve")
    async def reserve(data: dict[str, Any], ctx: Any) -> str:
        ctx.emit("Stock.Changed", data)
        return "reserved"

    @app.command("Till.Open")
    async def open_till(data: dict[str, Any], ctx: Any) -> str:
        ctx.emit("Till.Opened", data)
        return "opened"

    return app


def place(node: Served) -> tuple[str, int]:
    assert node.node.ndjson_port is not None
    host, port = listen_address(node.node.ndjson_port.address.partition("//")[2])
    return "127.0.0.1" if host == "0.0.0.0" else host, port


@asynccontextmanager
async def connected(node: Served, token: str = "", **options: Any) -> AsyncIterator[Client]:
    async with asyncio.timeout(60):
        client = Client(*await asyncio.open_connection(*place(node), limit=1 << 20, **options))
        try:
            if token:
                told = await client.call(command("Syscall.Authenticate", {"token": token}))
                assert told["data"]["authenticated"] is True
            yield client
        finally:
            client.writer.close()


async def code(client: Client, request: dict[str, Any]) -> Any:
    """The code of the error, or the data of the reply; events stay in the inbox."""
    client.send(request)
    events = []
    while (answer := await client.answer(request))["kind"] == "event":
        events.append(answer)
    client.inbox = events + client.inbox
    return answer["data"]["code"] if answer["kind"] == "error" else answer["data"]


async def test_it_is_off_unless_it_is_asked_for() -> None:
    async with served(shop()) as node:
        assert node.node.ndjson_port is None


async def test_on_this_machine_it_needs_nothing_while_there_are_no_tokens() -> None:
    async with served(shop(), kernel_tcp="0") as node, connected(node) as client:
        assert f"tcp://127.0.0.1:{place(node)[1]}" in node.node.kernel.summary()["adapters"]
        assert (await client.call(ping("hi")))["data"] == {"payload": "hi"}
        told = await client.call(command("Syscall.Authenticate", {}))
        assert told["data"] == {"authenticated": True, "message": "no authentication is needed here"}
        assert (await client.call(command("Syscall.Authenticate", {"token": "any"})))["kind"] == "reply"
        metrics = (await node.get("/metrics")).body.decode()
        assert "mainspring_ndjson_connections 1" in metrics


async def test_where_there_are_tokens_the_first_line_shows_one() -> None:
    async with served(shop(), tokens=TOKENS, kernel_tcp="127.0.0.1:0") as node:
        async with connected(node) as client:
            refused = await client.call(ping("early", id="early"))
            assert (refused["type"], refused["data"]["code"]) == ("Sys.Unauthorized", 401)
            assert "Syscall.Authenticate" in refused["data"]["remedy"]
            assert await code(client, command("Syscall.Authenticate", {})) == 401
            assert await code(client, command("Syscall.Authenticate", {"token": 5})) == 422
            first, then = command("Syscall.Authenticate", {"token": CLERK}), command("Stock.Reserve", {"sku": "x"})
            client.send(first, then)
            assert (await client.answer(first))["data"] == {"authenticated": True, "message": "authenticated as clerk"}
            assert (await client.answer(then))["data"] == "reserved"
            assert await code(client, command("Syscall.Authenticate", {"token": ROOT})) == 409
        async with connected(node) as client:
            wrong = command("Syscall.Authenticate", {"token": "ms_wrong"})
            client.send(wrong, ping("behind"))
            (refused,) = await client.to_end()
            assert (refused["type"], refused["data"]["code"]) == ("Sys.Unauthorized", 401)
            assert "ms_wrong" not in json.dumps(refused)


async def test_a_token_may_send_and_hear_what_its_scopes_say() -> None:
    async with (
        served(shop(), tokens=TOKENS, kernel_tcp="0") as node,
        connected(node, CLERK) as clerk,
        connected(node, READER) as reader,
        connected(node, ROOT) as root,
    ):
        for each in (clerk, reader, root):
            assert "types" in (await each.call(command("Event.Subscribe", {"types": ["*"]})))["data"]
        assert await code(clerk, command("Stock.Reserve", {"sku": "x"})) == "reserved"
        assert await code(clerk, command("Till.Open", {})) == 403
        assert await code(clerk, command("Syscall.Shutdown", {})) == 403
        assert await code(clerk, query("Memory.List", {})) == 403
        later = {"delay": 0, "message": message("command", "Till.Open", {})}
        assert await code(clerk, command("Timer.Schedule", later)) == 403
        assert await code(reader, query("Memory.List", {})) != 403
        reader.send(event := message("event", "Stock.Changed", {"forged": True}))
        assert (await reader.answer(event))["data"]["code"] == 403
        assert await code(root, command("Till.Open", {})) == "opened"
        heard = {
            name: sorted(line["type"] for line in await each.fence() if line["kind"] == "event")
            for name, each in (("clerk", clerk), ("root", root))
        }
        assert heard == {"clerk": ["Stock.Changed"], "root": ["Stock.Changed", "Till.Opened"]}
        reader.send(query("Memory.List", {}, id="last"))
        await reader.answer("last")
        assert [line for line in reader.inbox if line["kind"] == "event"] == []


async def test_a_token_that_is_taken_away_ends_its_connection(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("\n".join(TOKENS))
    async with (
        served(shop(), tokens_file=str(file), kernel_tcp="0") as node,
        connected(node, CLERK) as clerk,
        connected(node, ROOT) as root,
    ):
        file.write_text("\n".join(ACCESS_LINES))
        node.node.tokens.refresh()
        assert await clerk.to_end() == []
        assert await code(root, ping(1)) == {"payload": 1}


async def test_who_shows_no_token_in_time_is_not_kept() -> None:
    async with (
        served(tokens=TOKENS, kernel_tcp="0", header_timeout_ms=100) as node,
        connected(node) as silent,
        connected(node, ROOT) as root,
    ):
        silent.send(ping(1, id="a"))
        assert (await silent.answer("a"))["data"]["code"] == 401
        assert await silent.to_end() == []
        assert await code(root, ping(1)) == {"payload": 1}


@pytest.mark.parametrize("start", [b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n"])
async def test_a_page_in_a_browser_cannot_send_lines(start: bytes) -> None:
    async with served(shop(), kernel_tcp="0") as node, connected(node) as client:
        client.send_raw(start + b"\r\n" + encoded(command("Memory.Set", {"key": "/x", "value": 1})))
        (answer,) = await client.to_end()
        assert (answer["data"]["code"], answer["data"]["message"]) == (400, "this port speaks lines of JSON, not HTTP")
        async with connected(node) as other:
            assert await code(other, query("Memory.Get", {"key": "/x"})) == 404


async def test_who_may_have_no_more_connections_is_told() -> None:
    async with served(tokens=TOKENS, kernel_tcp="0", quota_connections=1) as node, connected(node, CLERK) as first:
        async with connected(node) as second:
            assert await code(second, command("Syscall.Authenticate", {"token": CLERK})) == 429
            assert await second.to_end() == []
        assert await code(first, command("Stock.Count", {})) == 404


async def test_where_there_is_no_room_the_line_says_so() -> None:
    async with served(kernel_tcp="0", max_connections=1, max_plain_connections=1) as node, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(node)) for _ in range(9)]
        (refused,) = await clients.pop().to_end()
        assert (refused["type"], refused["data"]["code"]) == ("Sys.TooManyConnections", 503)
        assert [await code(each, ping(1)) for each in clients] == [{"payload": 1}] * 8


async def test_beyond_this_machine_it_needs_tokens() -> None:
    with pytest.raises(BootFailure) as refused:
        async with served(kernel_tcp="0.0.0.0:0"):
            pass
    assert refused.value.code == "open_door"
    assert "0.0.0.0" in refused.value.message
    async with served(tokens=TOKENS, kernel_tcp="0.0.0.0:0") as node, connected(node, ROOT) as client:
        assert await code(client, ping(1)) == {"payload": 1}


async def test_an_address_that_cannot_be_used_stops_the_boot_and_says_what_to_do() -> None:
    async with served(kernel_tcp="0") as node:
        with pytest.raises(BootFailure, match="cannot listen on 127") as refused:
            async with served(kernel_tcp=str(place(node)[1])):
                pass
    assert "--kernel-tcp" in refused.value.remedy
    with pytest.raises(BootFailure, match="kernel_tcp is 'here', not an address") as refused:
        async with served(kernel_tcp="here"):
            pass
    assert "HOST:PORT" in refused.value.remedy


async def test_tls_is_that_of_the_port_and_a_certificate_is_an_identity(tmp_path: Path) -> None:
    servers, clients = trustme.CA(), trustme.CA()
    own = servers.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(part.bytes() for part in own.cert_chain_pems))
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    names = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_client_ca": "clients.pem"}
    lines = (*TOKENS, "till cert:CN=till command:Till.*")
    trust, shown = ssl.create_default_context(), ssl.create_default_context()
    for context in (trust, shown):
        servers.configure_trust(context)
    clients.issue_cert("till.example", common_name="till").configure_cert(shown)
    settings = {name: str(tmp_path / file) for name, file in names.items()}
    async with served(shop(), ssl=trust, tokens=lines, kernel_tcp="0", **settings) as node:
        assert node.node.ndjson_port is not None
        assert node.node.ndjson_port.address.startswith("tls://")
        async with connected(node, ROOT, ssl=trust) as client:
            assert await code(client, ping("x" * 10_000)) == {"payload": "x" * 10_000}
        async with connected(node, ssl=shown) as client:
            assert await code(client, command("Till.Open", {})) == "opened"
            assert await code(client, command("Stock.Reserve", {})) == 403
            told = await client.call(command("Syscall.Authenticate", {}))
            assert told["data"]["message"] == "authenticated as till"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7071", ("127.0.0.1", 7071)),
        (":7071", ("127.0.0.1", 7071)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:5", ("::1", 5)),
    ],
)
def test_an_address_is_a_port_or_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert listen_address(text) == found


@pytest.mark.parametrize("text", ["", "host", "host:", "1:2:3", "65536", "x:-1", "::1:5"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="kernel_tcp"):
        listen_address(text)
