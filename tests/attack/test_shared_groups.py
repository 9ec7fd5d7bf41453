"""Whose a group is, is known to every node on the log: another node is no way around it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring.client import connect
from mainspring.errors import MainspringError
from tests.support.client_node import eventually
from tests.support.mongo_server import new_database
from tests.support.nats_server import shared_server
from tests.support.victim import OPS, PUBLISHER, READER, Victim, attacked


@pytest.mark.parametrize("engine", ["nats", "mongodb"])
async def test_a_group_made_on_one_node_is_its_owners_on_the_other(tmp_path: Path, engine: str) -> None:
    address = shared_server().url(f"groups-{tmp_path.name[-12:]}") if engine == "nats" else new_database()
    with ExitStack() as undo:
        nodes: list[Victim] = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            nodes.append(undo.enter_context(attacked(folder, "--node", name, engine=address)))
        one, two = nodes
        assert one.ask("POST", "/topics/orders.in/events", {"payload": 1}, OPS).status == 201
        async with connect(one.url, PUBLISHER) as bus, bus.subscribe("orders.in", group="billing") as events:
            assert (await anext(aiter(events))).payload == 1

        async def is_known() -> bool:
            return b"billing" in two.ask("GET", "/groups", token=OPS).body

        await eventually(is_known)
        place = "/groups/orders.in/billing"
        for node in (one, two):
            assert node.ask("POST", f"{place}/seek", {"kind": "latest"}, READER).status in (403, 404)
            assert node.ask("DELETE", place, token=READER).status in (403, 404)
            async with connect(node.url, READER) as bus:
                with pytest.raises(MainspringError, match="billing"):
                    async with bus.subscribe("orders.in", group="billing") as events:
                        await anext(aiter(events))
        async with connect(two.url, PUBLISHER) as bus:
            assert two.ask("POST", f"{place}/seek", {"kind": "offset", "value": 1}, PUBLISHER).status == 200
            async with bus.subscribe("orders.in", group="billing") as events:
                assert (await anext(aiter(events))).payload == 1
