"""`GET /client.js`: the JavaScript client, served by the node it talks to, so that a page needs nothing else.

The file is part of the package and is read once. Everybody may load it, from pages of any origin: there is nothing
secret in it, and what it may do is decided when it connects.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from aiohttp import hdrs, web

PATH = "/client.js"


def add_client_js(app: web.Application) -> None:
    """Serve the client at `/client.js`."""
    body = (files("mainspring") / "client" / "client.js").read_bytes()
    packed = gzip.compress(body, mtime=0)
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'  # weak: the compressed form has other bytes

    async def client_js(request: web.Request) -> web.Response:
        headers = {
            hdrs.CONTENT_TYPE: "text/javascript; charset=utf-8",
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.ETAG: etag,
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
            "Cross-Origin-Resource-Policy": "cross-origin",
            "X-Content-Type-Options": "nosniff",
        }
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get(hdrs.IF_NONE_MATCH, "").split(",")}
        if etag.removeprefix("W/") in known:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "").lower():
            return web.Response(body=packed, headers={**headers, hdrs.CONTENT_ENCODING: "gzip"})
        return web.Response(body=body, headers=headers)

    app.router.add_get(PATH, client_js)
