"""The dashboard: a web page of the node, at `/` of the port that also speaks WebSocket there.

Its files are part of the package and are read once, when the first of them is asked for: a node nobody looks at does
not pay for them, and a request can never name a file that is not one of them. Everybody may load them, because nothing
in them is secret: what the page shows it asks for like any other client, with the token its reader gave it.

The page may load and run only what the node itself serves, holds no script or style of its own, and may not be framed.
Texts from payloads reach it only as text: the browser is told to refuse everything else (`trusted-types 'none'`).
"""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import hdrs, web

from mainspring.server.http.pages.assets import SCRIPT, Asset

PREFIX: Final = "/dashboard/"
PAGE: Final = "index.html"

CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": SCRIPT,
    ".svg": "image/svg+xml",
}

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

GUARDS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Dashboard:
    """The files of the page. `page` answers `/`, `file` everything below `/dashboard/`."""

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        return dict(_read(files("mainspring") / "dashboard", ""))

    def add_to(self, app: web.Application) -> None:
        """Serve the files; the page itself is served by whoever owns `/`."""
        resource = app.router.add_resource(PREFIX + "{name:.+}")
        resource.add_route(hdrs.METH_GET, self.file)
        resource.add_route(hdrs.METH_HEAD, self.file)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The page; `Vary` because the same address speaks WebSocket to those who ask for it."""
        response = self._assets[PAGE].answer(request, GUARDS)
        response.headers.add(hdrs.VARY, hdrs.UPGRADE)
        return response

    async def file(self, request: web.Request) -> web.StreamResponse:
        """A script, style or picture of the page."""
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        return asset.answer(request, GUARDS)


def _read(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found.extend(_read(entry, f"{name}/"))
        elif (kind := CONTENT_TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            found.append((name, Asset(entry.read_bytes(), kind)))
    return found
