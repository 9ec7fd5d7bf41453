"""The threat model (docs/explanation/security.md): every test that it names is there; and those that no other file has.

Attackers without a token, without a key, and with an account on the machine.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import App, Event, Perform, WaitSignal, connect
from mainspring.testing import serving
from tests.support.access import make_token, served
from tests.support.paths import ROOT as TREE
from tests.support.serving import PATIENCE_S, Serving, clean_environment

PAGE = (TREE / "docs" / "explanation" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", PAGE)))
ROOT, ROOT_TOKEN = make_token("root", "admin")
SECRET = "four-of-swords"


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_of_the_page_is_there(file: str, name: str) -> None:
    tree = ast.parse((TREE / file).read_text())
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in found


def test_every_row_of_the_page_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| they", "|--"))]
    assert len(rows) >= 25
    assert [row for row in rows if "::test_" not in row] == []


# --- without a token

PUBLIC = {"/healthz", "/readyz"}


async def test_a_stranger_is_told_nothing_but_health() -> None:
    async with served(tokens=(ROOT_TOKEN.line(),)) as node:
        described = (await node.get("/openapi.json", ROOT)).json["paths"]
        assert len(described) > 20
        for path, operations in described.items():
            for method in operations.keys() & {"get", "post", "put", "delete"}:
                answer = await node.request(method.upper(), re.sub(r"\{\w+\}", "1", path))
                if path in PUBLIC:
                    assert answer.status in (200, 503)
                else:
                    assert (path, answer.status) == (path, 401)
                    assert "WWW-Authenticate" in answer.headers
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with node.socket():
                pass
        assert refused.value.status == 401


async def test_pages_and_names_of_others_are_refused() -> None:
    async with served() as node:
        assert (await node.get("/topics")).status == 200
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert (await node.post("/topics/a/events", {"payload": 1}, headers=headers)).status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with node.session.ws_connect(node.url, headers={"Origin": "https://evil.example"}):
                pass
        assert refused.value.status == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_node_without_tokens_is_for_this_machine_alone(host: str, tmp_path: Path) -> None:
    node = Serving("--host", host, folder=tmp_path)
    try:
        node.launch()
        assert node.boot["type"] == "Sys.BootFailed"
        assert "token" in str(node.boot["data"])
        assert node.wait() == 1
    finally:
        node.__exit__(None, None, None)


async def test_a_proxy_lets_nobody_else_in_while_there_are_no_tokens() -> None:
    far = ("8.8.8.8", "127.0.0.1, 8.8.8.8", "2001:db8::1", "unknown", "")
    here = ("127.0.0.1", "::1", "[::1]:4711", "127.0.0.1:80, 127.0.0.1")
    async with served() as node:
        for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded"):
            for said in (*far, *here):
                value = ", ".join(f'For="{each.strip()}";proto=http' for each in said.split(","))
                headers = {name: value if name == "Forwarded" else said}
                answer = await node.get("/topics", headers=headers)
                assert (name, said, answer.status) == (name, said, 200 if said in here else 403)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with node.session.ws_connect(node.url, headers={"X-Forwarded-For": "8.8.8.8"}):
                pass
        assert refused.value.status == 403
    async with served(tokens=(ROOT_TOKEN.line(),)) as node:
        assert (await node.get("/topics", ROOT, headers={"X-Forwarded-For": "8.8.8.8"})).status == 200


# --- another user of the machine


def test_another_user_of_the_machine_can_open_nothing(tmp_path: Path) -> None:
    outer = tmp_path / "open"
    outer.mkdir()
    node = Serving(folder=outer, engine="sqlite")
    data = outer / "data"
    before = os.umask(0)
    try:
        with node:
            made = [data, *data.rglob("*")]
            loose = [str(each) for each in made if stat.S_IMODE(each.stat().st_mode) & 0o077]
            sockets = [stat.S_IMODE(each.stat().st_mode) for each in (node.kernel_socket, node.loop_socket)]
            export, backup = outer / "log.ndjson", outer / "copy.sqlite3"
            for command in (["export", str(export)], ["backup", str(backup)]):
                _mainspring("log", *command, "--data", str(data))
    finally:
        os.umask(before)
    assert any(each.name == "log.sqlite3" for each in made)
    assert loose == []
    assert all(mode & 0o077 == 0 for mode in sockets)
    assert [each.name for each in (export, backup) if stat.S_IMODE(each.stat().st_mode) & 0o077] == []


def _mainspring(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tokens_file_holds_hashes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    said = _mainspring("token", "new", "--agent", "ops", "--scope", "admin", "--file", str(file))
    (token,) = set(re.findall(r"\bms_[\w-]{43}", said))
    assert token not in file.read_text()
    assert token[3:] not in file.read_text()
    assert re.fullmatch(r"ops [0-9a-f]{64} admin\n", file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


# --- without the key


class Sealed:
    """A codec that knows whether its data is whole. Not a cipher; nobody reads it at sight, either."""

    key_id = "k1"

    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data + sum(data).to_bytes(8, "big"))

    def decode(self, data: bytes, key_id: str) -> bytes:
        plain = bytes(byte ^ 0x5A for byte in data)
        if sum(plain[:-8]).to_bytes(8, "big") != plain[-8:]:
            raise ValueError("it was changed")
        return plain[:-8]


def vault() -> App:
    app = App("vault", codec=Sealed())

    @app.consumer("cards", max_attempts=1)
    async def take(event: Event[str]) -> None:
        event.start_run(keep, event.payload, id="kept")

    @app.run
    async def keep(card: str, perform: Perform) -> Any:
        return await perform(WaitSignal("now"))

    return app


async def test_who_has_no_key_reads_no_payload(tmp_path: Path) -> None:
    async with (
        serving(vault(), engine="sqlite", data=str(tmp_path)) as node,
        connect(node.url, codec=Sealed()) as bus,
        connect(node.url) as stranger,
    ):
        await bus.publish("cards", SECRET)
        events = [event.payload async for event in stranger.replay("cards")]
        assert [event["key"] for event in events] == ["k1"]
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.01)
            found = [run async for run in stranger.runs()]
        history = await stranger.query("Run.History", {"id": "kept"})
        assert SECRET not in repr((events, history))
    stored = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"cards" in stored
    assert SECRET.encode() not in stored


async def test_a_payload_that_was_changed_is_not_taken() -> None:
    async with serving(vault()) as node, connect(node.url) as stranger:
        data = bytearray(Sealed().encode(b'"plain"'))
        data[2] ^= 1
        await stranger.publish("cards", {"$encoded": base64.b64encode(data).decode(), "key": "k1"})
        await stranger.publish("cards", {"$encoded": "no base64", "key": "k1"})
        letters: list[Any] = []
        while len(letters) < 2:
            await asyncio.sleep(0.01)
            letters = [letter async for letter in stranger.dead_letters("cards")]
        assert "could not be decoded" in letters[0].reason
        assert [run async for run in stranger.runs()] == []
