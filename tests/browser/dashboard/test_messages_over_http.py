"""POST /messages, GET /messages, GET /node and the leases of a group: what the dashboard asks, asked directly."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.support.dashboard_site import call


def send(url: str, kind: str, type: str, data: Any = None, **more: Any) -> tuple[int, Any]:
    body = {"kind": kind, "type": type, **({} if data is None else {"data": data}), **more}
    return call(url, "/messages", body)


def test_a_reply_is_the_message_itself(shop: str) -> None:
    status, reply = send(shop, "query", "Syscall.Ping", {"payload": {"n": 1}})
    assert status == 200
    assert (reply["kind"], reply["type"], reply["data"]) == ("reply", "Syscall.Ping", {"payload": {"n": 1}})
    status, tree = send(shop, "query", "Syscall.Trace", {"id": reply["metadata"]["causation"]})
    assert [node["type"] for node in tree["data"]["messages"]] == ["Syscall.Ping", "Syscall.Ping"]


def test_data_may_be_left_out_where_nothing_is_needed(shop: str) -> None:
    assert send(shop, "query", "Beat.Standing")[0] == 200


@pytest.mark.parametrize(
    ("kind", "type", "data", "status", "code"),
    [
        ("query", "No.Body", {}, 404, "routing_error"),
        ("query", "Order.Place", {}, 404, "routing_error"),  # it is a command
        ("command", "Order.Place", {"id": 1}, 422, "schema_error"),
        ("command", "Order.Place", {"id": "o", "customer": "c", "total": 0}, 422, "refused"),
        ("command", "Label.Print", {"sku": "x"}, 500, "actor_crash"),
        ("query", "Run.Outcome", {"id": "nobody"}, 404, "refused"),
        ("command", "Event.Subscribe", {"types": ["*"]}, 409, "refused"),
    ],
)
def test_an_error_has_the_status_it_carries(shop: str, kind: str, type: str, data: Any, status: int, code: str) -> None:
    found, problem = send(shop, kind, type, data)
    assert (found, problem["status"], problem["code"]) == (status, status, code)
    assert problem["message"]
    assert problem["error"]["kind"] == "error"
    assert problem["error"]["data"]["code"] == status


def test_a_request_that_takes_too_long_is_504(shop: str) -> None:
    status, problem = send(shop, "query", "Report.Build", {"sku": "x"}, timeout=50)
    assert (status, problem["code"]) == (504, "timeout")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "event", "type": "Order.Placed"}, 400),
        ({"kind": "query"}, 400),
        ({"kind": "query", "type": "syscall.ping"}, 422),
        ({"kind": "query", "type": "Syscall.Ping", "extra": 1}, 400),
        ({"kind": "query", "type": "Syscall.Ping", "timeout": 0}, 400),
        ({"kind": "query", "type": "Syscall.Ping", "timeout": 1e12}, 400),
        ([], 400),
    ],
)
def test_what_is_no_message_is_refused(shop: str, body: Any, status: int) -> None:
    found, problem = call(shop, "/messages", body)
    assert found == status
    assert problem["message"]


def test_a_foreign_page_cannot_send_messages(shop: str) -> None:
    host, port = shop.removeprefix("http://").split(":")
    body = b'{"kind":"command","type":"Syscall.Shutdown"}'
    for origin, kind in ((b"http://evil.example", b"application/json"), (None, b"text/plain")):
        with socket.create_connection((host, int(port))) as peer:
            head = [
                b"POST /messages HTTP/1.1",
                b"Host: " + host.encode(),
                b"Content-Type: " + kind,
                b"Connection: close",
            ]
            head += [b"Content-Length: %d" % len(body), *([b"Origin: " + origin] if origin else [])]
            peer.sendall(b"\r\n".join(head) + b"\r\n\r\n" + body)
            status = int(peer.makefile("rb").readline().split()[1])
        assert status in (403, 415)
    assert call(shop, "/healthz")[0] == 200


def test_messages_that_passed_are_listed_newest_first_and_page_by_page(shop: str) -> None:
    for n in range(5):
        send(shop, "query", "Stock.Count", {"sku": "x" * n})
    _, first = call(shop, "/messages?text=stock.count&kind=query&limit=2")
    _, second = call(shop, f"/messages?text=stock.count&kind=query&limit=2&before={first['messages'][-1]['id']}")
    ids = [each["id"] for each in first["messages"] + second["messages"]]
    assert len(set(ids)) == 4
    assert {each["kind"] for each in first["messages"]} == {"query"}
    assert not any("data" in each for each in first["messages"])
    assert call(shop, "/messages?limit=0")[0] == 400
    assert call(shop, "/messages?sort=up")[0] == 400


def test_the_node_tells_about_itself(shop: str) -> None:
    _, node = call(shop, "/node")
    assert node["you"] == {"agent": None, "proven": False, "admin": True, "scopes": []}
    assert node["started"] <= node["now"]
    assert node["loop"]["turns"] > 0
    actors = {actor["id"]: actor for actor in node["kernel"]["actors"]}
    assert actors["Label"]["restarts"] >= 1
    assert actors["Order"]["handles"] == ["command:Order.Place"]
    assert actors["Order"]["subscribes"] == ["Order.Placed"]
    assert "Report.Build" in [request["type"] for request in node["kernel"]["requests"]]
    assert "RuntimeError: the printer is out of paper" in [fault["message"] for fault in node["kernel"]["faults"]]
    assert node["slowTurns"][0]["ms"] > node["slowTurns"][0]["limitMs"]


def test_leases_say_what_is_held_and_until_when(shop: str) -> None:
    status, held = call(shop, "/groups/orders/packing/leases")
    assert (status, held["members"], len(held["leases"])) == (200, 1, 5)
    _, node = call(shop, "/node")
    for lease in held["leases"]:
        assert (lease["state"], lease["deliveries"]) == ("leased", 1)
        assert node["now"] < lease["until"] < node["now"] + 600_000
    assert call(shop, "/groups/orders/nobody/leases")[0] == 404
    assert call(shop, "/groups/nowhere/packing/leases")[0] == 404
    _, cut = call(shop, "/groups/orders/packing/leases?limit=1")
    assert len(cut["leases"]) <= 3


def test_rights_are_told_before_they_are_needed(shop: str) -> None:
    _, rights = call(shop, "/topics/orders/rights")
    assert rights == {
        "topic": "orders",
        "publish": True,
        "subscribe": True,
        "publishRefusal": "",
        "subscribeRefusal": "",
    }
    _, rights = call(shop, "/topics/system.bus.audit/rights")
    assert (rights["publish"], rights["subscribe"]) == (False, True)
    assert "written by the node only" in rights["publishRefusal"]


async def test_a_face_without_a_kernel_says_so() -> None:
    import aiohttp
    import uuid_utils
    from aiohttp import web

    from mainspring.bus import Bus
    from mainspring.log import Log, MemoryEngine
    from mainspring.loop import Loop, MonotonicClock
    from mainspring.server import NodeParts
    from mainspring.server.http import Face, add_routes
    from mainspring.settings import Settings

    clock = MonotonicClock()
    loop = Loop(clock)
    with loop.hosted():
        log = Log(MemoryEngine())
        await log.open()
        bus = Bus(log, clock, loop, settings=Settings(), new_id=lambda: str(uuid_utils.uuid7()), random=lambda: 0.5)
        await bus.start()
        app = web.Application()
        add_routes(app, Face(NodeParts(bus)))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            async with session.post("/messages", json={"kind": "query", "type": "Syscall.Ping"}) as answer:
                assert answer.status == 503
            async with session.get("/node") as answer:
                assert (await answer.json())["kernel"] is None
        await runner.cleanup()
        await bus.stop()
        await log.close()
    await asyncio.sleep(0)
