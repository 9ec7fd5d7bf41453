"""Three engines count together while their networks, the server and they themselves fail: nothing is counted twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from mainspring.log import ABSENT, Append, Batch, Guard, LogUnavailable, Put
from mainspring.log.engines.mongo import MongoEngine
from tests.support.mongo_server import MongoServer, own_server
from tests.support.proxy import Proxy

FAULTS = int(os.environ.get("MAINSPRING_MONGO_FAULTS", "8"))
_HASTY = "serverSelectionTimeoutMS=300&socketTimeoutMS=500&patience_ms=700&takeover_ms=300"


class Arena:
    """Each engine has its own network. Every count is one event and one record, in one batch."""

    def __init__(self, server: MongoServer, seed: int) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.stop = False
        self.proxies: list[Proxy] = []
        self.engines: list[MongoEngine] = []

    def engine(self, number: int) -> MongoEngine:
        port = self.proxies[number].port
        return MongoEngine(f"mongodb://127.0.0.1:{port}/x?directConnection=true&{_HASTY}")

    async def start(self) -> None:
        self.proxies = [await Proxy(self.server.port).start() for _ in range(3)]
        self.engines = [self.engine(number) for number in range(3)]
        for engine in self.engines:
            await engine.open()

    async def end(self) -> None:
        for engine in self.engines:
            await engine.close()
        for proxy in self.proxies:
            await proxy.close()

    async def count(self, number: int) -> None:
        while not self.stop:
            key = self.dice.choice("ab")
            try:
                record = await self.engines[number].get("s", key)
                version, count = (record.version, int(record.value)) if record else (ABSENT, 0)
                next_one = Append("done", 0, f"{key}{count + 1}", 1, b"1")
                await self.engines[number].commit([Batch([Put("s", key, b"%d" % (count + 1), version), next_one])])
            except LogUnavailable:
                pass  # also when in doubt: the version tells
            await asyncio.sleep(self.dice.random() / 100)

    async def fault(self) -> None:
        await asyncio.sleep(self.dice.random() / 2)
        number = self.dice.randrange(3)
        proxy = self.proxies[number]
        kind = self.dice.choice(["cut", "silence", "kill", "pause", "leave"])
        if kind == "cut":
            proxy.cut()
            await asyncio.sleep(self.dice.random())
        elif kind == "silence":
            proxy.hold_answers()
            await asyncio.sleep(self.dice.random())
            proxy.cut()
        elif kind == "kill":
            self.server.kill()
            await asyncio.to_thread(self.server.start)
        elif kind == "pause":
            self.server.pause()
            await asyncio.sleep(self.dice.random())
            self.server.resume()
        else:
            await self.leave_and_return(number)
        proxy.mend()

    async def leave_and_return(self, number: int) -> None:
        await self.engines[number].close()
        while True:
            self.engines[number] = self.engine(number)
            try:
                return await self.engines[number].open()
            except LogUnavailable:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", [1])
async def test_nothing_is_counted_twice_or_lost(seed: int) -> None:
    with own_server() as server:
        arena = Arena(server, seed)
        await arena.start()
        counters = [asyncio.create_task(arena.count(number)) for number in (0, 1, 2, 0, 1, 2)]
        for _ in range(FAULTS):
            await arena.fault()
        await asyncio.sleep(0.5)
        arena.stop = True
        await asyncio.gather(*counters)
        late = MongoEngine(f"{server.url}/x?directConnection=true")
        await late.open()
        found = await late.read("done", 0, 1, 100_000)
        assert [event.offset for event in found] == list(range(1, len(found) + 1))
        names = [event.id for event in found]
        assert [name for name, times in Counter(names).items() if times > 1] == []
        for key in "ab":
            record = await late.get("s", key)
            assert record is not None
            assert [name for name in names if name[0] == key] == [f"{key}{n}" for n in range(1, int(record.value) + 1)]
        for engine in arena.engines:
            await engine.commit([Batch([Guard("s", "none", ABSENT)])])
            assert [event.id for event in await engine.read("done", 0, 1, 100_000)] == names
        await late.close()
        await arena.end()
