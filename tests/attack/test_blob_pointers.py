"""A handler that takes a pointer to a blob, as documented, reads blobs and nothing else of the machine.

What a FastAPI user expects of an upload: what a client sends names no file of the server, and none can stop the server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import App
from mainspring.kernel import Blob, BlobPointer, read_blob
from tests.support.access import Served, make_token, served

READER, READER_TOKEN = make_token("reader", "query:Doc.*")
FUTURE = "999999999999999"


def docs() -> App:
    app = App("docs")

    @app.query("Doc.Make")
    async def make(data: dict[str, Any], ctx: Any) -> Blob:
        return Blob("the content")

    @app.query("Doc.Head")
    async def head(data: BlobPointer, ctx: Any) -> str:
        return read_blob(data).decode()

    @app.query("Doc.InThread")
    async def head_in_thread(data: BlobPointer, ctx: Any) -> str:
        content: bytes = await ctx.read_blob(data)
        return content.decode()

    @app.query("Doc.Plain")
    def head_plain(data: BlobPointer, ctx: Any) -> str:
        content: bytes = ctx.read_blob(data)
        return content.decode()

    return app


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(docs(), tokens=(READER_TOKEN.line(),), data=str(tmp_path)) as running:
        yield running


async def read(node: Served, path: str, type: str = "Doc.Head") -> tuple[int, Any]:
    data = {"scheme": "file", "path": path}
    answer = await node.post("/messages", {"kind": "query", "type": type, "data": data}, READER)
    assert (await node.get("/topics", READER)).status == 200, "an innocent client is served meanwhile"
    return answer.status, answer.json


async def make(node: Served) -> str:
    answer = await node.post("/messages", {"kind": "query", "type": "Doc.Make", "data": {}}, READER)
    return str(answer.json["data"]["path"])


@pytest.mark.parametrize("type", ["Doc.Head", "Doc.InThread", "Doc.Plain"])
async def test_no_file_of_the_machine_is_read(node: Served, tmp_path: Path, type: str) -> None:
    blobs = tmp_path / "blobs"
    await make(node)
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    (blobs / f"{FUTURE}-link.blob").symlink_to(secret)
    (blobs / "plain.txt").write_text("SECRET")
    os.mkfifo(blobs / f"{FUTURE}-fifo.blob")
    (blobs / f"{FUTURE}-folder.blob").mkdir()
    tries = [
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        str(secret),
        str(blobs / f"{FUTURE}-link.blob"),
        str(blobs / f"{FUTURE}-fifo.blob"),
        str(blobs / f"{FUTURE}-folder.blob"),
        str(blobs / "plain.txt"),
        f"/blobs/{FUTURE}-link.blob",
        f"/blobs/{FUTURE}-fifo.blob",
        "/blobs/plain.txt",
        f"//blobs/{FUTURE}-link.blob",
        "/blobs//etc/passwd",
    ]
    for path in tries:
        status, answer = await read(node, path, type)
        assert status == 404, (path, answer)
        assert "SECRET" not in str(answer)
        assert "root:" not in str(answer)
    for path in ("/blobs/../secret", f"{blobs}/../secret"):
        assert (await read(node, path, type))[0] == 422


@pytest.mark.parametrize("type", ["Doc.Head", "Doc.InThread", "Doc.Plain"])
async def test_a_blob_is_read_by_what_its_maker_was_told(node: Served, tmp_path: Path, type: str) -> None:
    told = await make(node)
    assert told.startswith("/blobs/"), "where the node keeps its files is not told over the network"
    status, answer = await read(node, told, type)
    assert (status, answer["data"]) == (200, "the content")
    [stored] = (tmp_path / "blobs").iterdir()
    assert (await read(node, str(stored), type))[0] == 200, "programs of this machine know the whole path"
