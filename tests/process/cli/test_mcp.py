"""`mainspring mcp` as the protocol's own Python SDK sees it, and as a client sees it that sends anything at all.

A model is offered only what changes nothing. A long call keeps no other waiting; ping is answered meanwhile; who does
not want an answer any more gets none.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.program.mcp import MAX_LINE_BYTES, Server, serve_lines
from mainspring.cli.program.mcp_http import is_local
from mainspring.cli.support.messages import Wire
from tests.support.serving import PATIENCE_S, Serving, clean_environment

mcp = pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")

PROGRAM = """
import asyncio
from collections import defaultdict
from mainspring import App

app = App("shop")
gates = defaultdict(asyncio.Event)

@app.query("Stock.Count")
async def count(sku: str, ctx) -> int:
    "How many there are."
    return 3

@app.query("Slow.Wait")
async def wait(gate: str, ctx) -> str:
    await gates[gate].wait()
    return "opened"

@app.query("Slow.Open")
async def open_gate(gate: str, ctx) -> str:
    gates[gate].set()
    return "open"

@app.command("Order.Place")
async def place(sku: str, ctx) -> str:
    await ctx.publish("orders", {"sku": sku})
    return sku

@app.run
async def ship(sku: str, perform) -> str:
    return sku
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "shop.py").write_text(PROGRAM)
    with Serving("shop:app", folder=folder, engine="sqlite") as node:
        with Wire(node.kernel_socket) as wire:
            wire.ask("command", "Order.Place", "pen")
            wire.ask("command", "Run.Start", {"program": "ship", "args": ["pen"], "id": "r/1"})
        yield node


@asynccontextmanager
async def session(node: Serving, *arguments: str) -> AsyncIterator[Any]:
    """A client of the SDK over the pipes of a real process."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    options = ["-m", "mainspring", "mcp", "--socket", str(node.kernel_socket), *arguments]
    parameters = StdioServerParameters(command=sys.executable, args=options, env=clean_environment())
    async with stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as client:
        await client.initialize()
        yield client


@asynccontextmanager
async def http_session(node: Serving) -> AsyncIterator[tuple[Any, str]]:
    """The same over streamable HTTP, and its address."""
    from mcp.client.streamable_http import streamable_http_client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [sys.executable, "-m", "mainspring", "mcp", "--socket", str(node.kernel_socket), "--http", address]
    process = subprocess.Popen(options, env=clean_environment(), stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    url = f"http://{address}/mcp"
    try:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as open_:
            await asyncio.to_thread(_until_there, url)
            streams = await open_.enter_async_context(streamable_http_client(url))
            client = await open_.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
            await client.initialize()
            yield client, url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@asynccontextmanager
async def either_session(node: Serving, transport: str) -> AsyncIterator[Any]:
    if transport == "pipes":
        async with session(node) as client:
            yield client
    else:
        async with http_session(node) as (client, _):
            yield client


over_both = pytest.mark.parametrize("transport", ["pipes", "http"])


def _until_there(url: str) -> None:
    while True:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            continue


async def test_only_what_changes_nothing_is_offered_unless_told_otherwise(node: Serving) -> None:
    async with session(node) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"Stock_Count", "Bus_Read"} <= names
        assert not names & {"Order_Place", "Syscall_Shutdown", "Memory_Set", "Bus_Publish", "Event_Subscribe"}
        answer = await client.call_tool("Stock_Count", {"data": "pen"})
        assert (answer.is_error, answer.content[0].text) == (False, "3")
        for name in ("Order_Place", "Syscall_Shutdown"):
            with pytest.raises(mcp.MCPError, match="there is no tool"):
                await client.call_tool(name, {"data": "pen"})
    async with session(node, "--allow-changes") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"Order_Place", "Bus_Publish"} <= names
        assert not names & {"Syscall_Shutdown", "Syscall_Restart", "Event_Subscribe"}
    async with session(node, "--allow-changes", "--only", "Syscall.Shutdown", "--only", "Order.*") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"Syscall_Shutdown", "Order_Place"}


@over_both
async def test_a_long_call_keeps_no_other_waiting_and_says_that_it_goes_on(node: Serving, transport: str) -> None:
    progress: list[float] = []
    heard = asyncio.Event()

    async def on_progress(done: float, total: float | None, text: str | None) -> None:
        progress.append(done)
        heard.set()

    async with asyncio.timeout(PATIENCE_S), either_session(node, transport) as client:
        slow = asyncio.ensure_future(client.call_tool("Slow_Wait", {"data": transport}, progress_callback=on_progress))
        unwanted = asyncio.ensure_future(client.call_tool("Slow_Wait", {"data": f"{transport} for ever"}))
        await client.send_ping()
        assert (await client.call_tool("Stock_Count", {"data": "pen"})).content[0].text == "3"
        await heard.wait()
        assert not slow.done()
        unwanted.cancel()  # the SDK says so to the server
        await client.call_tool("Slow_Open", {"data": transport})
        assert (await slow).content[0].text == '"opened"'
    assert progress == sorted(progress)


@over_both
async def test_topics_runs_and_descriptions_are_resources(node: Serving, transport: str) -> None:
    async with either_session(node, transport) as client:
        found = {str(each.uri) for each in (await client.list_resources()).resources}
        assert {"mainspring://topics/orders", "mainspring://runs/r%2F1", "mainspring://docs/messages"} <= found
        templates = (await client.list_resource_templates()).resource_templates
        assert {each.uri_template for each in templates} >= {"mainspring://topics/{topic}", "mainspring://runs/{id}"}

        async def read(uri: str) -> Any:
            return json.loads((await client.read_resource(uri)).contents[0].text)

        assert [each["payload"] for each in (await read("mainspring://topics/orders"))["events"]] == [{"sku": "pen"}]
        assert (await read("mainspring://runs/r%2F1"))["run"]["program"] == "ship"
        assert (await read("mainspring://docs/Stock.Count"))["description"] == "How many there are."
        assert any(each["type"] == "Order.Place" for each in await read("mainspring://docs/messages"))
        for uri in ("mainspring://topics/none", "mainspring://runs/none", "mainspring://x/y", "file:///etc/passwd"):
            with pytest.raises(mcp.MCPError, match="no resource"):
                await client.read_resource(uri)


async def test_the_same_over_http_but_for_pages_and_names_of_others(node: Serving) -> None:
    async with http_session(node) as (client, url):
        assert (await client.call_tool("Stock_Count", {"data": "pen"})).content[0].text == "3"
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403),
            ({"Host": "evil.example"}, 403),
            ({}, 400),
            ({"Mcp-Session-Id": "no"}, 404),
            ({"MCP-Protocol-Version": "1"}, 400),
        ):
            assert await asyncio.to_thread(_status, url, headers) == status


def _status(url: str, headers: dict[str, str]) -> int:
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("address", ["0.0.0.0:7071", "example.com:80", "7071", "127.0.0.1", "[::", "127.0.0.1:x"])
def test_http_is_for_this_machine_alone(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "mcp", "--http", address],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "is not a loopback address" in done.stderr
    assert is_local("127.0.0.2")
    assert not is_local("localhost.evil.example")


def test_a_cancelled_call_gets_no_answer(node: Serving) -> None:
    """Line by line, since an SDK hides what comes for a call that it has given up."""
    options = [sys.executable, "-m", "mainspring", "mcp", "--socket", str(node.kernel_socket)]
    pipe = subprocess.PIPE
    with subprocess.Popen(options, env=clean_environment(), stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def say(id: Any, method: str, **params: Any) -> None:
            request = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
            print(json.dumps(request), file=server.stdin, flush=True)

        def call(id: Any, tool: str, data: str) -> None:
            say(id, "tools/call", name=tool, arguments={"data": data})

        call(7, "Slow_Wait", "lines")
        call("7", "Slow_Wait", "lines")
        say(8, "ping")
        assert json.loads(server.stdout.readline()) == {"jsonrpc": "2.0", "id": 8, "result": {}}
        say(None, "notifications/cancelled", requestId=7)
        call(9, "Slow_Open", "lines")
        server.stdin.close()
        rest = [json.loads(line)["id"] for line in server.stdout]
    assert sorted(rest, key=str) == ["7", 9], "7 and '7' are two"


# -- without a process: anything that a client may send


ODD = [
    b"[" * 100_000,
    b'{"a":' * 5_000,
    b'"\\ud800"',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"A_\\ud800","arguments":{}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"mainspring://topics/%ff\\ud800"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":{}}}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"A_B","arguments":[1]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":{}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":{}}}}',
    b"\xff\xfe\x00",
    b"[]",
    b"[1,[2]]",
    b"null",
    b"x" * (MAX_LINE_BYTES + 10),
]


def test_no_line_ends_the_server(tmp_path: Path) -> None:
    lines = io.BytesIO(b"".join(line + b"\n" for line in ODD) + b'{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
    out = io.StringIO()
    serve_lines(Server(lambda: Wire(tmp_path / "no.sock")), lines, out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {"jsonrpc": "2.0", "id": "last", "result": {}} in answers
    assert len(answers) == len(ODD) + 1
