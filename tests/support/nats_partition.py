"""A cluster of three NATS servers that can be split: every route goes through a proxy.

Clients are not told of other servers (`no_advertise`), so a node stays with the server its address names, also on the
wrong side of a split. Routes are not told of either: the address a server advertises to the others leads nowhere.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.nats_server import NatsCluster, NatsServer, free_port
from tests.support.proxy import Proxy


class SplitCluster(NatsCluster):
    """`await start()` in the loop of the test; `isolate` one server from the others, `heal` to join them again."""

    def __init__(self, place: Path) -> None:
        self._ports = [free_port() for _ in range(3)]
        self._proxies: dict[tuple[int, int], Proxy] = {}
        self.servers = [NatsServer(place / f"s{n}", name=f"s{n}") for n in range(3)]

    async def join(self) -> SplitCluster:
        for here in range(3):
            for there in range(3):
                if here != there:
                    self._proxies[here, there] = await Proxy(self._ports[there]).start()
        for here, server in enumerate(self.servers):
            routes = ", ".join(
                f'"nats://127.0.0.1:{proxy.port}"' for (start, _), proxy in self._proxies.items() if start == here
            )
            server.cluster = (
                f'cluster {{ name: "c", listen: "127.0.0.1:{self._ports[here]}", advertise: "127.0.0.1:1", '
                f"no_advertise: true, routes: [{routes}] }}"
            )
            server.launch()
        for server in self.servers:
            await asyncio.to_thread(server.wait)
        return self

    def isolate(self, server: NatsServer) -> None:
        alone = self.servers.index(server)
        for pair, proxy in self._proxies.items():
            if alone in pair:
                proxy.cut()

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.mend()

    async def end(self) -> None:
        self.kill()
        for proxy in self._proxies.values():
            await proxy.close()
