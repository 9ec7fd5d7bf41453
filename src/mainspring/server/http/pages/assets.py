"""Files of the package, sent as browsers like it: compressed once, and not again to those who have them.

`GET /client.js`, the JavaScript client, is served here by the node it talks to, so that a page needs nothing else.
Everybody may load it, from pages of any origin: there is nothing secret in it, and what it may do is decided when it
connects.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Final

from aiohttp import hdrs, web

CLIENT: Final = "/client.js"
SCRIPT: Final = "text/javascript; charset=utf-8"


class Asset:
    """One file, ready to be sent."""

    def __init__(self, body: bytes, content_type: str) -> None:
        self._body = body
        self._content_type = content_type
        # Weak: the compressed form has other bytes and is the same file.
        self._etag: str = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'

    @cached_property
    def _packed(self) -> bytes:
        """The same compressed; done once, for the first browser that understands it."""
        return gzip.compress(self._body, mtime=0)

    def answer(self, request: web.Request, guards: Mapping[str, str]) -> web.Response:
        """`no-cache` lets a browser keep a file but ask each time whether it is still the one; most answers are 304."""
        headers = {
            **guards,
            hdrs.ETAG: self._etag,
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
            hdrs.CONTENT_TYPE: self._content_type,
        }
        if _knows(request.headers.get(hdrs.IF_NONE_MATCH, ""), self._etag):
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "").lower():
            return web.Response(body=self._packed, headers={**headers, hdrs.CONTENT_ENCODING: "gzip"})
        return web.Response(body=self._body, headers=headers)


def add_client_js(app: web.Application) -> None:
    """Serve the client at `/client.js`."""
    asset = Asset((files("mainspring") / "client" / "client.js").read_bytes(), SCRIPT)
    guards = {"Cross-Origin-Resource-Policy": "cross-origin", "X-Content-Type-Options": "nosniff"}

    async def client_js(request: web.Request) -> web.Response:
        return asset.answer(request, guards)

    app.router.add_get(CLIENT, client_js)


def _knows(if_none_match: str, etag: str) -> bool:
    """Whether one of the tags the client has is this one; weak and strong tags are the same here (RFC 9110)."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known
