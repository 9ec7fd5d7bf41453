"""`/client.js`: the file of the package, cached and compressed as browsers like it."""

from __future__ import annotations

import gzip
from importlib.resources import files

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from mainspring.server.http.pages import add_client_js

TEXT = (files("mainspring") / "client" / "client.js").read_bytes()


async def test_the_node_serves_its_own_client() -> None:
    app = web.Application()
    add_client_js(app)
    async with TestClient(TestServer(app), auto_decompress=False) as client:
        plain = await client.get("/client.js", headers={"Accept-Encoding": "identity"})
        assert plain.status == 200
        assert plain.content_type == "text/javascript"
        assert await plain.read() == TEXT
        packed = await client.get("/client.js", headers={"Accept-Encoding": "gzip"})
        assert gzip.decompress(await packed.read()) == TEXT
        known = await client.get("/client.js", headers={"If-None-Match": plain.headers["ETag"]})
        assert known.status == 304
        head = await client.head("/client.js")
        assert head.status == 200
        assert (await client.post("/client.js")).status == 405
