"""Who tried what and who changed what can be found out afterwards, and asking for it a million times fills no disk."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.access import Served, make_token, served

NONE, NONE_TOKEN = make_token("mallory", "publish:nowhere")
SHOP, SHOP_TOKEN = make_token("shop", "publish:orders.**", "subscribe:orders.**")
ROOT, ROOT_TOKEN = make_token("root", "admin")
TOKENS = tuple(each.line() for each in (NONE_TOKEN, SHOP_TOKEN, ROOT_TOKEN))


async def audited(node: Served, *wanted: tuple[str, str, str]) -> list[dict[str, Any]]:
    """The records, once these (action, agent, a text in what it is about) are among them."""
    for _ in range(500):
        answer = await node.get("/topics/system.bus.audit/events?limit=10000", ROOT)
        records = [each["payload"] for each in answer.json["events"]] if answer.status == 200 else []
        if all(any(fits(record, each) for record in records) for each in wanted):
            return records
        await asyncio.sleep(0.02)
    pytest.fail(f"not all of {wanted} in {records}")


def fits(record: dict[str, Any], wanted: tuple[str, str, str]) -> bool:
    action, agent, about = wanted
    known = f"{record.get('about', '')} {record.get('topic', '')} {record.get('reason', '')}"
    return (record["action"], record.get("agent", "")) == (action, agent) and about in known


async def test_refusals_and_changes_are_told_with_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens"
    file.write_text("\n".join(TOKENS))
    with caplog.at_level(logging.INFO, "mainspring.audit"):
        async with served(tokens_file=str(file)) as node:
            await node.get("/topics", "ms_wrong")
            await node.get("/topics/payroll/events", NONE)
            async with node.socket(NONE) as socket:
                await socket.publish("payroll")
            await node.post("/messages", {"kind": "query", "type": "Memory.List", "data": {}}, NONE)
            message = {"kind": "query", "type": "Bus.Read", "data": {"topic": "payroll"}}
            await node.post("/messages", message, NONE)
            await node.post("/topics", {"topic": "payroll", "publishACL": ["hr"]}, ROOT)
            memory = {"kind": "command", "type": "Memory.Set", "data": {"key": "/x", "value": 1}}
            await node.post("/messages", memory, ROOT)
            async with node.socket(SHOP) as socket:
                await socket.subscribe("orders.x", "own")
            for _ in range(500):
                if (await node.request("DELETE", "/groups/orders.x/own", SHOP)).status == 204:
                    break
                await asyncio.sleep(0.02)
            file.write_text("\n".join(TOKENS[1:]))
            records = await audited(
                node,
                ("login_refused", "", "GET /topics"),
                ("right_refused", "mallory", "/topics/payroll/events"),
                ("right_refused", "mallory", "PUBLISH"),
                ("right_refused", "mallory", "Bus.Read"),
                ("changed", "root", "payroll"),
                ("command", "root", "Memory.Set"),
                ("deleted", "shop", "group own"),
                ("token_removed", "mallory", ""),
            )
            assert any(record.get("address") == "127.0.0.1" for record in records)
            assert "ms_wrong" not in str(records)
            await node.post("/messages", {"kind": "command", "type": "Syscall.Shutdown", "data": {}}, ROOT)
            await audited(node, ("command", "root", "Syscall.Shutdown"), ("shutdown", "", "Syscall.Shutdown"))
    said = [record.getMessage() for record in caplog.records if record.name == "mainspring.audit"]
    for action in ("login_refused", "right_refused", "changed", "deleted", "command", "token_removed", "shutdown"):
        assert any(line.startswith(f"action='{action}'") for line in said), action
    assert not any("ms_wrong" in line for line in said)


async def test_a_flood_of_refusals_is_counted_and_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mainspring.audit"):
        async with served(tokens=TOKENS) as node:
            async with node.socket(NONE) as socket:
                for number in range(3_000):
                    frame = {"type": "PUBLISH", "topic": f"invented.{number}\x1b[2J", "payload": 1}
                    await socket.socket.send_json(frame)
                for _ in range(3_000):
                    assert (await socket.next())["type"] == "ERROR"
            assert (await node.post("/topics/orders.x/events", {"payload": 1}, SHOP)).status == 201
            await node.post("/topics", {"topic": "orders.y"}, ROOT)
            records = await audited(node, ("changed", "root", "orders.y"))
            assert len(records) < 1_000
    said = [record.getMessage() for record in caplog.records if record.name == "mainspring.audit"]
    assert len(said) < 1_000
    assert not any("\x1b" in line for line in said)
