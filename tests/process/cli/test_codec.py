"""`mainspring decode` and `mainspring log export --reencode`: for people who have the keys."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from mainspring import App, connect
from mainspring.codec import Encoding
from mainspring.log import log_file
from mainspring.outbox import Outbox
from mainspring.testing import serving
from tests.support.serving import PATIENCE_S, clean_environment

PROGRAM = """
from mainspring import App

class Ring:
    key_id = {current!r}
    def encode(self, data):
        return data[::-1]
    def decode(self, data, key_id):
        return {{"old": data[::-1], "new": data[::-1]}}[key_id]

app = App("shop", codec=Ring())
plain = App("plain")
"""


class Ring:
    """As in PROGRAM."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, key_id: str) -> bytes:
        return {"old": data[::-1], "new": data[::-1]}[key_id]


def mainspring(folder: Path, *arguments: str, given: bytes = b"", code: int = 0) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        cwd=folder,
        env=clean_environment(),
        input=given,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


async def test_a_log_is_encoded_again_with_the_current_key(tmp_path: Path) -> None:
    app = App("shop", codec=Ring("old"))

    @app.run
    async def ship(order: str, perform: object) -> str:
        return f"shipped {order}"

    data = tmp_path / "data"
    async with serving(app, engine="sqlite", data=str(data)) as node, connect(node.url, codec=Ring("old")) as bus:
        await bus.publish("orders", {"number": 1.50})
        run = await bus.start_run("ship", "pen")
        await bus.outcome(run, timeout="30s")
    (tmp_path / "shop.py").write_text(PROGRAM.format(current="new"))
    await asyncio.to_thread(
        mainspring, tmp_path, "log", "export", "--reencode", "shop:app", "log.ndjson", "--data", "data"
    )
    await asyncio.to_thread(mainspring, tmp_path, "log", "import", "log.ndjson", "--data", "again")
    before, after = log_file(data).read_bytes(), log_file(tmp_path / "again").read_bytes()
    assert b'"key":"old"' in before
    assert b'"key":"old"' not in after
    app = App("shop", codec=Ring("new"))
    app.run(ship)
    again = str(tmp_path / "again")
    async with serving(app, engine="sqlite", data=again) as node, connect(node.url, codec=Ring("new")) as bus:
        assert [each.payload async for each in bus.replay("orders")] == [{"number": 1.5}]
        assert (await bus.run_info(run)).value == "shipped pen"


def test_lines_of_json_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.format(current="new"))
    sealed, lost = Encoding(Ring("old")).seal_value({"who": "Ada"}), Encoding(Ring("gone")).seal_value(1)
    given = json.dumps({"payload": sealed, "more": [lost]}).encode() + b'\n\n"plain"\n'
    lines = mainspring(tmp_path, "decode", "shop:app", given=given).splitlines()
    assert json.loads(lines[0]) == {"payload": {"who": "Ada"}, "more": [lost]}
    assert lines[1:] == [b'"plain"']
    assert b"not JSON" in mainspring(tmp_path, "decode", "shop:app", given=b"no", code=1)
    assert b"has no codec" in mainspring(tmp_path, "decode", "shop:plain", code=1)
    assert b"is not a codec" in mainspring(tmp_path, "decode", "shop:__name__", code=1)


def test_an_outbox_encodes_what_it_writes(tmp_path: Path) -> None:
    outbox = Outbox(codec=Ring("new"))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        outbox.create(connection)
        outbox.add(connection, "orders", {"who": "Ada"})
        ((payload,),) = connection.execute(f"SELECT payload FROM {outbox.table}").fetchall()
    assert "Ada" not in payload
    assert Encoding(Ring("new")).open(payload.encode()) == b'{"who":"Ada"}'
