"""A day in the shop: what the node of the tests has seen before anybody opens its dashboard."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

NDJSON = {"Content-Type": "application/x-ndjson"}
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"partitions": 3, "ackTimeoutMs": 600_000},
    "payments": {"maxAttempts": 1},
    "shipping.labels": {"partitions": 2, "retentionMs": 604_800_000},
    "inventory.changes": {"compact": True},
    "mail.outbox": {},
}
PATIENCE_S = 60  # for what must come; never a measurement
PEOPLE = ("Ada", "Grace", "Edsger", "Barbara")


class Shop:
    """Speaks to one node over HTTP and WebSocket, as its clients would."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def open(self) -> Shop:
        self.session = aiohttp.ClientSession(headers=self.headers)
        return self

    async def post(self, path: str, body: Any, **options: Any) -> Any:
        async with self.session.post(self.url + path, json=body, **options) as answer:
            return await answer.json()

    async def message(self, kind: str, type: str, data: Any) -> Any:
        return await self.post("/messages", {"kind": kind, "type": type, "data": data})

    async def publish(self, topic: str, events: list[dict[str, Any]]) -> None:
        text = "\n".join(map(json.dumps, events))
        async with self.session.post(f"{self.url}/topics/{topic}/events", data=text, headers=NDJSON) as answer:
            assert answer.status == 201, await answer.text()

    async def refuse_all(self, topic: str, group: str, reason: str, count: int) -> None:
        """A consumer that gives back everything, until `count` events are dead."""
        async with self.session.ws_connect(self.url) as socket:
            await socket.send_json({"type": "SUBSCRIBE", "topic": topic, "group": group, "from": {"kind": "offset"}})
            refused = 0
            while refused < count:
                frame = await socket.receive_json()
                assert frame["type"] != "ERROR", frame
                if frame["type"] != "MESSAGE":
                    continue
                place = {name: frame[name] for name in ("topic", "group", "partition", "offset")}
                await socket.send_json({"type": "NACK", **place, "reason": reason})
                refused += 1
            while (await self.dead(topic)) < count:  # noqa: ASYNC110 (another process decides)
                await asyncio.sleep(0.05)

    async def restarts(self, actor: str) -> int:
        async with self.session.get(f"{self.url}/node") as answer:
            actors = (await answer.json())["kernel"]["actors"]
        return int(next(each["restarts"] for each in actors if each["id"] == actor))

    async def dead(self, topic: str) -> int:
        async with self.session.get(f"{self.url}/dlq/{topic}") as answer:
            return len((await answer.json()).get("letters", []))


def order(n: int, chance: random.Random) -> dict[str, Any]:
    return {
        "key": f"c-{chance.randint(1, 40)}",
        "headers": {"source": "web", "trace": f"{chance.getrandbits(64):016x}"},
        "payload": {
            "id": f"o-{n:05d}",
            "total": chance.randint(900, 99_999),
            "currency": "EUR",
            "customer": {"name": chance.choice(PEOPLE), "city": chance.choice(("Delft", "Zürich", "Turin"))},
            "lines": [{"sku": "spring-12", "count": chance.randint(1, 4)}],
        },
    }


async def spend(url: str) -> None:
    """Everything the views have something to show about."""
    shop = await Shop(url).open()
    chance = random.Random(7)
    for topic, settings in TOPICS.items():
        await shop.post("/topics", {"topic": topic, **settings})
        count = {"orders": 400, "payments": 6}.get(topic, 60)
        await shop.publish(topic, [order(n, chance) for n in range(count)])
    await shop.refuse_all("payments", "billing", "card declined by the bank", 6)
    for n in range(6):
        await shop.message("command", "Order.Place", {"id": f"o-{n}", "customer": "c-1", "total": n * 100})
    await shop.message("command", "Label.Print", {"sku": "spring-12"})
    await shop.message("command", "Run.Start", {"program": "year_end", "id": "year-end"})
    for n in range(8):
        wait_ms = 3_600_000 if n in (5, 6) else 40 + 30 * n
        card = "expired" if n == 4 else "valid"
        args = [{"id": f"o-{n}", "card": card, "total": 50 + 100 * n, "wait_ms": wait_ms}]
        await shop.message("command", "Run.Start", {"program": "checkout", "args": args, "id": f"checkout-{n:04d}"})
    for n in range(12):
        signal = {"signal": "/signals/image/thumbnail", "target": f"/photos/2026/img{n:02d}.jpg"}
        await shop.message("command", "Beat.Signal", signal)
    metadata = {"id": "later", "timestamp": 1}
    later = {"kind": "command", "type": "Stock.Reserve", "data": {"sku": "spring-12"}, "metadata": metadata}
    await shop.message("command", "Timer.Schedule", {"delay": 3_600_000, "message": later})
    await shop.post(
        "/schedules", {"name": "nightly-report", "topic": "mail.outbox", "payload": {}, "cron": "0 3 * * *"}
    )
    await shop.post("/schedules", {"name": "stock-check", "topic": "mail.outbox", "payload": {}, "every": 900_000})
    while not await shop.restarts("Label"):  # noqa: ASYNC110 (another process decides)
        await asyncio.sleep(0.05)
    await shop.session.close()


def aside(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a thread of its own: the browser's driver has the loop of this one."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, asyncio.wait_for(work, PATIENCE_S)).result()


class Packer:
    """A consumer in a thread of its own that takes five orders and keeps them: leases to look at."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.holds = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self._hold(),), daemon=True)
        self.done = asyncio.Event()

    def __enter__(self) -> Packer:
        self.thread.start()
        assert self.holds.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.done.set)
        self.thread.join(30)

    async def _hold(self) -> None:
        shop = await Shop(self.url).open()
        async with shop.session, shop.session.ws_connect(self.url) as socket:
            start = {"kind": "offset"}
            await socket.send_json(
                {"type": "SUBSCRIBE", "topic": "orders", "group": "packing", "from": start, "max_inflight": 5}
            )
            while (await socket.receive_json())["type"] != "MESSAGE":
                pass
            self.holds.set()
            slow = {"kind": "query", "type": "Report.Build", "data": {"sku": "all"}, "timeout": 600_000}
            aside = [asyncio.create_task(shop.post("/messages", slow)), asyncio.create_task(_answer_pings(socket))]
            await self.done.wait()
            for task in aside:
                task.cancel()


async def _answer_pings(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in socket:
        pass
