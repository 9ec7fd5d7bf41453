"""Any order of starting, stopping, killing and cutting off nodes of three programs, from a seed.

What must hold after every start: everything that a living node declares is in force, as the newest of them says; what
nobody declares is gone; one node leads the beats, and no node with a newer program is there. SIMULATION_SEEDS=500 tries
more.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from mainspring import App
from tests.support.upgrade import LEASE_MS, Site, Upgraded, story, wait

SCHEDULES = (
    {"tick": "5s", "sweep": "20s"},
    {"tick": "3s", "report": "7s", "sweep": "20s"},
    {"tick": "4s", "report": "9s", "audit": "30s"},
)
NAMES = ("a", "b", "c")


def program(version: int) -> App:
    app = App("shop")
    app.topic("orders", retention_count=1_000 + version)
    for name, interval in SCHEDULES[version].items():
        app.every(interval, name=name)(lambda: None)
    app.enzyme(f"/v{version}", name=f"v{version}")(lambda signal, target, stage: None)
    return app


class Story:
    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.living: dict[str, tuple[Upgraded, int]] = {}
        self.introduced: list[int] = []  # versions in the order of their first start

    async def step(self) -> None:
        name = self.random.choice(NAMES)
        if name in self.living:
            node, version = self.living.pop(name)
            how = self.random.choice(["stop", "stop", "kill", "cut"])
            if how == "stop" or (how == "kill" and not self.living):  # somebody must see that a lease is over
                await node.stop()
            elif how == "kill":
                node.kill()
                await wait(2 * LEASE_MS)
            else:
                await self._cut_off(name, node, version)
                return
        if name not in self.living and self.random.random() < 0.8:
            version = self.random.choice((0, 1, 2))
            if version not in self.introduced:
                self.introduced.append(version)
            self.living[name] = (await self.site.start(name, program(version)), version)
            await self.check()

    async def _cut_off(self, name: str, node: Upgraded, version: int) -> None:
        node.engine.cut_off = True
        await wait(self.random.choice([0.3, 2]) * LEASE_MS)
        node.engine.join_again()
        await wait(2 * LEASE_MS)
        self.living[name] = (node, version)

    async def check(self) -> None:
        await wait(LEASE_MS)
        versions = sorted({version for _, version in self.living.values()}, key=self.introduced.index)
        expected: dict[str, Any] = {}
        for version in versions:
            expected |= {name: int(every[:-1]) * 1_000 for name, every in SCHEDULES[version].items()}
        for node, _ in self.living.values():
            assert node.schedules == expected
            assert node.core.bus.topics.get("orders").config.retention_count == 1_000 + versions[-1]
            leaders = [each.name for each in node.core.cluster.nodes() if "beats" in each.roles]
            assert len(leaders) == 1
            assert self.living[leaders[0]][1] == versions[-1]


@pytest.mark.parametrize("seed", range(int(os.environ.get("SIMULATION_SEEDS", "10"))))
@story
async def test_what_is_in_force_is_what_the_living_programs_say(site: Site, seed: int) -> None:
    told = Story(site, seed)
    for _ in range(25):
        await told.step()
    for node, _ in told.living.values():
        await node.stop()
