"""Lines over a socket, and over a port: framing, limits, half-closes, slow readers."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import App, Fail
from mainspring.errors import BootError
from mainspring.loop import VirtualClock
from mainspring.server import ndjson
from mainspring.server.ndjson import MAX_LINE_BYTES, MAX_OPEN_BYTES, TOO_LONG, Lines, NdjsonServer
from mainspring.unix_socket import listen_at
from tests.support.kernel import FACE, Client, booted, command, encoded, message, ping, query, served, virtual


@pytest.fixture(params=["unix", "tcp"])
def face(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same protocol on the socket and on the port."""
    token = FACE.set(request.param)
    yield
    FACE.reset(token)


on_each_face = pytest.mark.usefixtures("face")


def padded(request: dict[str, Any], size: int, *path: str) -> bytes:
    """`request` as a line of exactly `size` bytes without LF."""
    holder = request["data"]
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = ""
    holder[path[-1]] = "x" * (size - len(encoded(request)) + 1)
    return encoded(request)


def swallowing() -> App:
    app = App("swallow", concurrency=1)

    @app.command("Swallow.Text")
    async def swallow(data: dict, ctx: Any) -> int:
        return len(data["text"])

    @app.query("Big.Text")
    async def big(data: dict, ctx: Any) -> str:
        return "x" * data["size"]

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> dict:
        await ctx.sleep(data["s"])
        return data

    return app


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    """Checklist 103: partial frames wait, several frames in one read are all seen."""
    stream = b"\n".join(lines)
    cutter, found, rest = Lines(), [], stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += cutter.feed(rest[:size])
        rest = rest[size:]
    found += cutter.end()
    expected = [line.removesuffix(b"\r") for line in stream.split(b"\n")]
    if not expected[-1]:
        expected.pop()
    assert found == expected


@on_each_face
@virtual
async def test_frames_in_pieces_and_in_heaps(clock: VirtualClock) -> None:
    """Checklist 103, 104, 105."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        line = encoded(ping("é\U0001f600", id="pieces"))
        for start in range(0, len(line), 7):
            client.send_raw(line[start : start + 7])
            await asyncio.sleep(0.001)
        assert (await client.answer("pieces"))["data"] == {"payload": "é\U0001f600"}
        requests = [ping(number) for number in range(300)]
        client.send(*requests)
        for request in requests:
            assert (await client.answer(request))["data"] == request["data"]


@on_each_face
@virtual
async def test_crlf_ends_a_line_and_blank_lines_are_skipped(clock: VirtualClock) -> None:
    """Checklist 103."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send_raw(b"\n\r\n   \n\t\n" + encoded(ping(1, id="crlf"))[:-1] + b"\r\n\n")
        assert (await client.answer("crlf"))["data"] == {"payload": 1}
        assert await client.fence() == []


@on_each_face
@virtual
async def test_replies_are_one_compact_line_each(clock: VirtualClock) -> None:
    """Checklist 106, 111."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send_raw(b'{ "kind" : "query", "type":"Syscall.Ping", "data": { "payload" : [ 1, "a\\nb" ] },')
        client.send_raw(b'  "metadata": {"id": "a", "timestamp": 1}}\n')
        await client.line()
        [raw] = client.raw
        assert raw.count(b"\n") == 1
        assert b": " not in raw
        assert b", " not in raw
        assert json.loads(raw)["data"] == {"payload": [1, "a\nb"]}


EVERY_TYPE = [None, True, False, "", "text", [], {}, [[]], {"a": {}}, {"": ""}, 0, -1, 1.5, 1.0, -0.0, 1e-9]
EVERY_TYPE += [1.7976931348623157e308, 2**53 + 1, -(2**63), 2**64, 12345678901234567890, 10**40]
EVERY_TYPE += ['quote " backslash \\ \b\f\n\r\t \u0000 \u007f', "line\u2028paragraph\u2029", "\ufeffmark", "x" * 1000]
EVERY_TYPE += ["字" * 3000, "x" * 10_000, {"é\U0001f600": [None, [True, {"k": 1.0}]]}]


@on_each_face
@virtual
async def test_ping_returns_its_payload_identical(clock: VirtualClock) -> None:
    """Checklist 110, 160: every JSON type, unicode, escapes, nesting, 1 KB, 10 KB."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        nested: Any = "end"
        for _ in range(100):
            nested = [{"n": nested}]
        for payload in [*EVERY_TYPE, nested]:
            answer = await client.call(ping(payload))
            assert repr(answer["data"]) == repr({"payload": payload})


@on_each_face
@virtual
async def test_the_line_limit_is_16384_bytes_without_lf(clock: VirtualClock) -> None:
    """Checklist 151."""
    async with served(swallowing(), clock) as site:
        client = await site.connect()
        for size in (MAX_LINE_BYTES - 1, MAX_LINE_BYTES):
            request = command("Swallow.Text", {})
            client.send_raw(padded(request, size, "text"))
            assert (await client.answer(request))["kind"] == "reply"
            client.send_raw(padded(request, size, "text")[:-1] + b"\r\n")
            assert (await client.answer(request))["kind"] == "reply"
        client.send_raw(padded(command("Swallow.Text", {}), MAX_LINE_BYTES + 1, "text"))
        answer = await client.line()
        assert (answer["type"], answer["data"]["code"], answer["data"]["message"]) == ("Sys.SchemaError", 413, TOO_LONG)
        assert await client.fence() == []


@pytest.mark.parametrize("size", [MAX_LINE_BYTES + 1, 70_000, 1_000_000])
@on_each_face
@virtual
async def test_the_rest_of_a_long_line_is_discarded(clock: VirtualClock, size: int) -> None:
    """Checklist 151, 155: one 413, and the next line is served."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send_raw(b'{"x":"' + b"y" * (size - 8) + b'"}\n' + encoded(ping("after", id="after")))
        assert (await client.line())["data"] == {"code": 413, "message": TOO_LONG}
        assert (await client.answer("after"))["data"] == {"payload": "after"}
        assert await client.fence() == []


def test_a_long_line_never_fills_the_memory() -> None:
    """Checklist 151."""
    lines = Lines()
    found = [line for _ in range(100) for line in lines.feed(b"x" * 100_000)]
    assert found == [None]
    assert len(lines._tail) <= MAX_LINE_BYTES + 1
    assert lines.feed(b"rest of it\nnext\n") == [b"next"]


@on_each_face
@virtual
async def test_bad_json_is_400_and_a_bad_message_422(clock: VirtualClock) -> None:
    """Checklist 104, 140, 152, 153, 155: one error each, with causation when an id can be read."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        for line, code, prefix, cause in [
            (b"nonsense", 400, "Invalid JSON: ", None),
            (b'{"a":"\xff"}', 400, "Invalid JSON: ", None),
            (b"[" * 5000, 400, "Invalid JSON: ", None),
            (b"[]", 422, "Schema validation failed: ", None),
            (encoded({**ping(id="known"), "kind": "x"})[:-1], 422, "Schema validation failed: ", "known"),
            (encoded(ping(id=5))[:-1], 422, "Schema validation failed: ", None),
        ]:
            client.send_raw(line + b"\n")
            answer = await client.line()
            assert (answer["type"], answer["data"]["code"]) == ("Sys.SchemaError", code)
            assert answer["data"]["message"].startswith(prefix)
            assert answer["metadata"].get("causation") == cause
            assert await client.fence() == []


@on_each_face
@virtual
async def test_an_answer_too_long_for_a_line_is_413_for_its_requester(clock: VirtualClock) -> None:
    """Checklist 154: never a cut line, and no fault of the actor."""
    async with served(swallowing(), clock) as site:
        client = await site.connect()
        kinds = []
        for size in [*range(MAX_LINE_BYTES - 160, MAX_LINE_BYTES, 8), *[MAX_LINE_BYTES] * 5]:
            request = ping("", correlation="flow")
            client.send_raw(padded(request, size, "payload"))
            answer = await client.answer(request)
            kinds.append(answer["kind"])
            if answer["kind"] == "error":
                assert (answer["type"], answer["data"]["code"]) == ("Sys.TooLarge", 413)
                assert answer["metadata"]["correlation"] == "flow"
        assert kinds == sorted(kinds, reverse=True)
        assert {kinds[0], kinds[-1]} == {"reply", "error"}
        assert (await client.call(query("Big.Text", {"size": 100_000})))["data"]["code"] == 413
        assert (await client.call(query("Big.Text", {"size": 3})))["data"] == "xxx"
        assert site.kernel.exchange.counters["faults"] == 0
        assert max(map(len, client.raw)) <= MAX_LINE_BYTES


@pytest.mark.parametrize("member", ["id", "correlation", "type"])
@on_each_face
@virtual
async def test_a_lineage_that_does_not_fit_is_left_out(clock: VirtualClock, member: str) -> None:
    """Checklist 154, 76."""
    async with served(swallowing(), clock) as site:
        client = await site.connect()
        request = command("Swallow.Text", {"text": ""})
        if member == "type":
            request["type"] = "A." + "B" * (MAX_LINE_BYTES - len(encoded(request)))
        else:
            request["metadata"][member] = ""
            request["metadata"][member] = "x" * (MAX_LINE_BYTES - len(encoded(request)))
        client.send(request)
        answer = await client.line()
        assert answer["data"]["code"] in (404, 413)
        assert await client.fence() == []


@on_each_face
@virtual
async def test_only_replies_and_errors_are_written(clock: VirtualClock) -> None:
    """Checklist 116."""
    app = App("loud")

    @app.command("Loud.Do")
    async def do(data: dict, ctx: Any) -> None:
        ctx.emit("Loud.Happened", {})

    async with served(app, clock) as site:
        client = await site.connect()
        await client.call(command("Loud.Do", {}))
        client.send(message("event", "Loud.Happened", {}))
        assert await client.fence() == []


@on_each_face
@virtual
async def test_half_close_answers_everything_then_closes(clock: VirtualClock) -> None:
    """Checklist 115: again and again, with answers of every sort outstanding."""
    async with served(swallowing(), clock) as site:
        for _ in range(20):
            client = await site.connect()
            requests = [
                query("Slow.Wait", {"s": 0.3}),
                *(ping(number) for number in range(20)),
                command("No.Such", {}),
                query("Slow.Wait", {"s": 9}, timeout=200),
                query("Slow.Wait", {"s": 0}),
            ]
            client.send(*requests, message("event", "Any.Event", 1))
            client.send_raw(b"{bad\n" + encoded(ping("tail", id="tail"))[:-1])
            client.writer.write_eof()
            lines = await client.to_end()
            expected = [request["metadata"]["id"] for request in requests] + ["tail"]
            causes = [line["metadata"].get("causation") for line in lines]
            assert sorted(filter(None, causes)) == sorted(expected)
            assert causes.count(None) == 1
            await client.close()
            await asyncio.sleep(10)
        empty = await site.connect()
        empty.writer.write_eof()
        assert await empty.to_end() == []


@on_each_face
@virtual
async def test_a_client_that_does_not_read_is_held_back(clock: VirtualClock) -> None:
    """Checklist 107: its memory is bounded, others are served, and nothing of its own is lost."""
    async with served(swallowing(), clock) as site:
        other = await site.connect()
        with site.raw_socket() as slow:
            sent, asked, still = 0, 0, 0
            pending = b""
            while still < 20:
                pending = pending or encoded(ping("x" * 8000, id=f"slow{asked}"))
                try:
                    done = slow.send(pending)
                    sent, pending, still = sent + done, pending[done:], 0
                    asked += not pending
                except BlockingIOError:
                    still += 1
                    await asyncio.sleep(0.01)
                assert sent < 24_000_000, "the server reads on from a client that does not read"
            connection = next(each for each in site.server._connections if each._write_full)
            unread = connection._transport.get_write_buffer_size() + sum(map(len, connection._outgoing))
            assert unread < 8_000_000
            assert (await other.call(ping("alive")))["data"] == {"payload": "alive"}
            received, found = b"", []
            while len(found) < asked:
                await asyncio.sleep(0.001)
                try:
                    received += slow.recv(1 << 20)
                except BlockingIOError:
                    continue
                *lines, received = received.split(b"\n")
                found += [json.loads(line)["metadata"]["causation"] for line in lines]
            assert found == [f"slow{number}" for number in range(asked)]


@on_each_face
@virtual
async def test_a_client_with_very_many_open_requests_waits_and_loses_none(clock: VirtualClock) -> None:
    """Checklist 107."""
    async with served(swallowing(), clock) as site:
        client = await site.connect()
        count = ndjson.MAX_OPEN + 500
        client.send(query("Slow.Wait", {"s": 5}, id="first", timeout=60_000))
        client.send(*(query("Slow.Wait", {"s": 0}, id=f"q{number}", timeout=60_000) for number in range(count)))
        await asyncio.sleep(1)
        assert site.kernel.liveness()["inFlight"] == ndjson.MAX_OPEN
        for _ in range(count + 1):
            assert (await client.line())["kind"] == "reply"


@on_each_face
@virtual
async def test_busy_clients_keep_their_answers_apart(clock: VirtualClock) -> None:
    """Checklist 69, 106, 113."""
    async with served(App("x"), clock) as site:

        async def work(name: int) -> None:
            client = await site.connect()
            client.send(*(ping([name, number], id=f"n{number}") for number in range(200)))
            for number in range(200):
                assert (await client.answer(f"n{number}"))["data"] == {"payload": [name, number]}
            assert await client.fence() == []

        await asyncio.gather(*(work(name) for name in range(4)))


@on_each_face
@virtual
async def test_events_are_streamed_to_those_who_asked(clock: VirtualClock) -> None:
    """Checklist 116: by type or pattern, until they ask no longer."""
    async with served(App("x"), clock) as site:
        client, other = await site.connect(), await site.connect()
        answer = await client.call(command("Event.Subscribe", {"types": ["Stock.*", "Other.Exact"]}))
        assert answer["data"] == {"types": ["Stock.*", "Other.Exact"]}
        for type in ("Stock.Changed", "Stocks.Changed", "Other.Exact", "Other.More", "Stock.Gone"):
            other.send(message("event", type, {"t": type}, correlation="flow"))
        await other.fence()
        heard = await client.fence()
        assert [(line["kind"], line["type"]) for line in heard] == [
            ("event", "Stock.Changed"),
            ("event", "Other.Exact"),
            ("event", "Stock.Gone"),
        ]
        assert heard[0]["metadata"]["correlation"] == "flow"
        assert (await client.call(command("Event.Unsubscribe", {"types": ["Stock.*"]})))["data"] == {
            "types": ["Other.Exact"]
        }
        other.send(message("event", "Stock.Changed", {}), message("event", "Other.Exact", {}))
        await other.fence()
        assert [line["type"] for line in await client.fence()] == ["Other.Exact"]
        assert (await client.call(command("Event.Unsubscribe", {})))["data"] == {"types": []}
        other.send(message("event", "Other.Exact", {}))
        await other.fence()
        assert await client.fence() == await other.fence() == []


@on_each_face
@virtual
async def test_bad_subscriptions_are_refused(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        client = await site.connect()
        for types in ([], ["stock.*"], ["A.B.C"], ["S*.X"], [5], "Stock.*", None, ["A.B"] * 300):
            assert (await client.call(command("Event.Subscribe", {"types": types})))["data"]["code"] == 422
        with pytest.raises(Fail) as caught:
            await site.kernel.ask("command", "Event.Subscribe", {"types": ["*"]})
        assert caught.value.code == 409


@on_each_face
@virtual
async def test_a_subscription_ends_with_its_connection_and_misses_are_told(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        client = await site.connect()
        await client.call(command("Event.Subscribe", {"types": ["*"]}))
        site.kernel.emit("Too.Large", "x" * 20_000)
        site.kernel.emit("Small.Event", 1)
        await site.kernel.quiescent()
        lines = [line for line in await client.fence() if line["kind"] == "event"]
        assert [(line["type"], line["data"]) for line in lines] == [
            ("Sys.EventsMissed", {"count": 1}),
            ("Small.Event", 1),
        ]
        assert site.kernel.exchange.streams
        await client.close()
        await asyncio.sleep(1)
        site.kernel.emit("Small.Event", 2)
        await site.kernel.quiescent()
        await asyncio.sleep(1)
        assert not site.kernel.exchange.streams


@on_each_face
@virtual
async def test_a_slow_subscriber_misses_events_and_hurts_nobody(clock: VirtualClock) -> None:
    """Checklist 107."""
    async with served(App("x"), clock) as site:
        other = await site.connect()
        with site.raw_socket() as slow:
            slow.send(encoded(command("Event.Subscribe", {"types": ["Loud.*"]}, id="s")))
            await asyncio.sleep(0.1)
            for number in range(8000):  # more than the buffers of the system hold
                site.kernel.emit("Loud.Event", {"n": number, "text": "x" * 1000})
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await site.kernel.quiescent()
            [connection] = [each for each in site.server._connections if each in site.kernel.exchange.streams]
            assert connection._missed > 0
            assert connection._transport.get_write_buffer_size() < 4_000_000
            assert (await other.call(ping("alive")))["data"] == {"payload": "alive"}
            received = b""
            while True:
                await asyncio.sleep(0.001)
                try:
                    received += slow.recv(1 << 20)
                except BlockingIOError:
                    break
            site.kernel.emit("Loud.Event", {"n": "last"})
            await asyncio.sleep(0.01)
            received += slow.recv(1 << 20)
            lines = [json.loads(line) for line in received.splitlines()]
            heard = [line["data"]["n"] for line in lines if line["type"] == "Loud.Event"]
            missed = sum(line["data"]["count"] for line in lines if line["type"] == "Sys.EventsMissed")
            assert heard[-1] == "last"
            assert len(heard) - 1 + missed == 8000


def test_the_adapter_knows_nothing_of_routes_and_handlers() -> None:
    """Checklist 108, 109: it uses of the kernel only its doors."""
    tree = ast.parse(inspect.getsource(ndjson))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, (ast.Attribute, ast.Name))
        and (getattr(node.value, "attr", None) == "_kernel" or getattr(node.value, "id", None) == "kernel")
    }
    assert used <= {"ingest", "reject", "forget", "ids", "clock", "loop"}


# --- the socket file --------------------------------------------------------------------------------------------


@virtual
async def test_directory_and_socket_belong_to_the_user(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        path = site.server.path
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
        await site.server.stop()
        assert not path.exists()


@virtual
async def test_a_stale_socket_is_replaced_and_a_live_one_respected(clock: VirtualClock, tmp_path: Path) -> None:
    async with served(App("x"), clock) as site, booted(App("y"), clock) as second:
        path = site.server.path
        with pytest.raises(BootError, match="another server"):
            await NdjsonServer(second, path).start()
        client = await site.connect()
        assert (await client.call(ping(1)))["data"] == {"payload": 1}
        stale = path.parent / "stale.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(stale))
        server = NdjsonServer(second, stale)
        await server.start()
        answer = Client(*await asyncio.open_unix_connection(str(stale)))
        assert (await answer.call(ping(2)))["data"] == {"payload": 2}
        answer.writer.close()
        await server.stop()


@virtual
async def test_paths_that_cannot_be_used_are_refused(clock: VirtualClock, tmp_path: Path) -> None:
    async with booted(App("x"), clock) as kernel:
        (tmp_path / "file").write_text("not a socket")
        for path in (tmp_path / "file", tmp_path / "file" / "k.sock", tmp_path / ("x" * 200)):
            with pytest.raises(BootError):
                await NdjsonServer(kernel, path).start()
        assert (tmp_path / "file").read_text() == "not a socket"


def test_of_two_servers_that_find_a_dead_socket_at_once_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(path))
        with ThreadPoolExecutor(4) as servers:
            begun = [servers.submit(listen_at, path) for _ in range(4)]
        listening = [each.result() for each in begun if each.exception() is None]
        assert len(listening) == 1
        assert all("another server listens" in str(each.exception()) for each in begun if each.exception())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
        listening[0].close()
        path.unlink()


@on_each_face
@virtual
async def test_an_event_with_spaces_between_its_parts_is_streamed_as_one_compact_line(clock: VirtualClock) -> None:
    """Checklist 110, 111: the same value, without what is not part of it."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        await client.call(command("Event.Subscribe", {"types": ["*"]}))
        value = b'{ "a" : [ 1.0 ,\t1e300,\r"x  y" ] }'
        client.send_raw(
            b'{"kind":"event","type":"Odd.One","data":' + value + b',"metadata":{"id":"e","timestamp":1}}\n'
        )
        await client.fence()
        [line] = [raw for raw in client.raw if b"Odd.One" in raw]
        assert b'"data":{"a":[1.0,1e300,"x  y"]},' in line


@on_each_face
@virtual
async def test_an_event_with_a_number_no_computer_can_hold_is_refused_like_a_command(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        listener, client = await site.connect(), await site.connect()
        await listener.call(command("Event.Subscribe", {"types": ["*"]}))
        for number in (b"1e400", b"-1E+999", b'{"a":[1e309]}'):
            client.send_raw(
                b'{"kind":"event","type":"Odd.One","data":' + number + b',"metadata":{"id":"e","timestamp":1}}\n'
            )
            refused = await client.answer("e")
            assert (refused["kind"], refused["data"]["code"], refused["metadata"]["causation"]) == ("error", 422, "e")
        fine = b'{"kind":"event","type":"Odd.One","data":"1e400","metadata":{"id":"e","timestamp":1}}\n'
        client.send_raw(fine)
        await client.fence()
        await listener.fence()
        assert [raw for raw in listener.raw if b"Odd.One" in raw] == [fine]


@on_each_face
@virtual
async def test_a_client_cannot_fill_the_memory_through_an_actor_that_is_stuck(clock: VirtualClock) -> None:
    """Checklist 107: what is open is bounded in bytes too, and all of it is answered in the end."""
    app = App("stuck", concurrency=1)
    go = asyncio.Event()

    @app.command("Stuck.Do")
    async def do(data: str, ctx: Any) -> int:
        await go.wait()
        return len(data)

    async with served(app, clock) as site:
        client = await site.connect()
        client.send(*(command("Stuck.Do", "x" * 15_000, id=str(n)) for n in range(3_000)))
        other = await site.connect()
        for _ in range(300):
            await other.fence()
        held = sum(len(bytes(mail.message.raw)) for mail in site.kernel.exchange.pending)
        assert MAX_OPEN_BYTES <= held < 3 * MAX_OPEN_BYTES
        go.set()
        assert [(await client.line())["metadata"]["causation"] for _ in range(3_000)] == [str(n) for n in range(3_000)]
