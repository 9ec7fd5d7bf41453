"""Commands sent by a client: a durable one may be sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import Fail
from mainspring.client import NodeRefused, connect
from tests.support.serving import serving

PROGRAM = """
from mainspring import App

app = App("till")
taken = []

@app.command("Till.Take", durable=True)
async def take(data: dict, ctx) -> dict:
    taken.append(data["cents"])
    return {"taken": sum(taken)}
"""


async def test_a_durable_command_sent_again_under_its_id_is_carried_out_once(tmp_path: Path) -> None:
    (tmp_path / "till.py").write_text(PROGRAM)
    with serving(tmp_path, "till:app", env={"PYTHONPATH": str(tmp_path)}) as node:
        async with connect(f"ws://127.0.0.1:{node.port}") as client:
            assert await client.command("Till.Take", {"cents": 5}, id="first") == {"taken": 5}
            assert await client.command("Till.Take", {"cents": 5}, id="first") == {"taken": 5}
            assert await client.command("Till.Take", {"cents": 5}, id="second") == {"taken": 10}
            with pytest.raises(Fail, match="another durable command") as taken:
                await client.command("Till.Take", {"cents": 7}, id="first")
            assert taken.value.code == 409
            with pytest.raises(NodeRefused):
                await client.command("Till.Take", {"cents": 7}, id="")
            assert await client.command("Till.Take", {"cents": 1}) == {"taken": 11}
