"""Pages for people on the HTTP port: the dashboard, the JavaScript client, and the pages of the program.

The dashboard is a web page of the node, at `/` of the port that also speaks WebSocket there. Its files are part of the
package and are read once, when the first of them is asked for: a node without readers does not pay for them, and a
request can never name a file that is not one of them. Everybody may load them, because nothing in them is secret: what
the page shows it asks for like any other client, with the token its reader gave it. The page may load and run only what
the node itself serves, holds no script or style of its own, and may not be framed. Texts from payloads reach it only as
text: the browser is told to refuse everything else (`trusted-types 'none'`).

`GET /client.js` is the JavaScript client, served by the node it talks to, so that a page needs nothing else. Everybody
may load it, from pages of any origin: what it may do is decided when it connects.

A program's pages are a folder of files, served below a path of the node's port. Such a page has the node's own origin,
so it may connect and needs nothing from other places. That also means that a script that gets into such a page acts
with whatever the reader's browser may do on this node, the dashboard included. So the pages come with a policy that
runs only scripts of the node itself, unless the program brings its own. Only files below the folder are served: links
are followed before the place is checked. Names that begin with a dot are not served; what people keep in such files is
seldom meant for everybody.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from mainspring.errors import BootError

DASHBOARD: Final = "/dashboard/"
CLIENT: Final = "/client.js"
INDEX: Final = "index.html"

# Not left to the machine's own table: with `nosniff`, a script of the wrong type does not run.
CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}

DASHBOARD_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

PROGRAM_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class Asset:
    """One file of the package, sent as browsers like it: compressed once, and not again to those who have it."""

    def __init__(self, body: bytes, content_type: str) -> None:
        self._body = body
        self._content_type = content_type
        # Weak: the compressed form has other bytes and is the same file.
        self._etag: str = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'

    @cached_property
    def _packed(self) -> bytes:
        """The same compressed; done once, for the first browser that understands it."""
        return gzip.compress(self._body, mtime=0)

    def answer(self, request: web.Request, extra_headers: Mapping[str, str]) -> web.Response:
        """`no-cache` lets a browser keep a file but ask each time whether it is still the one; most answers are 304."""
        headers = {
            **extra_headers,
            hdrs.ETAG: self._etag,
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
            hdrs.CONTENT_TYPE: self._content_type,
        }
        if _has_copy(request.headers.get(hdrs.IF_NONE_MATCH, ""), self._etag):
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "").lower():
            return web.Response(body=self._packed, headers={**headers, hdrs.CONTENT_ENCODING: "gzip"})
        return web.Response(body=self._body, headers=headers)


def _has_copy(if_none_match: str, etag: str) -> bool:
    """Whether one of the tags the client has is this one; weak and strong tags are the same here (RFC 9110)."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


class Dashboard:
    """The files of the page. `page` answers `/`, `file` everything below `/dashboard/`."""

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        return dict(_read(files("mainspring") / "dashboard"))

    def add_to(self, app: web.Application) -> None:
        """Serve the files; the page itself is served by the owner of `/`."""
        resource = app.router.add_resource(DASHBOARD + "{name:.+}")
        resource.add_route(hdrs.METH_GET, self.file)
        resource.add_route(hdrs.METH_HEAD, self.file)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The page; `Vary` because the same address speaks WebSocket to those who ask for it."""
        response = self._assets[INDEX].answer(request, DASHBOARD_HEADERS)
        response.headers.add(hdrs.VARY, hdrs.UPGRADE)
        return response

    async def file(self, request: web.Request) -> web.StreamResponse:
        """A script, style or picture of the page."""
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        return asset.answer(request, DASHBOARD_HEADERS)


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _read(entry, f"{name}/")
        elif (content_type := CONTENT_TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            yield name, Asset(entry.read_bytes(), content_type)


def add_client_js(app: web.Application) -> None:
    """Serve the JavaScript client at `/client.js`."""
    asset = Asset((files("mainspring") / "client" / "client.js").read_bytes(), CONTENT_TYPES[".js"])
    headers = {"Cross-Origin-Resource-Policy": "cross-origin", "X-Content-Type-Options": "nosniff"}

    async def client_js(request: web.Request) -> web.Response:
        return asset.answer(request, headers)

    app.router.add_get(CLIENT, client_js)


def add_pages(app: web.Application, path: str, folder: Path, policy: str | None = None) -> None:
    """Serve a folder below `path`. Raises `BootError` for a path the node needs, or where there is no folder."""
    prefix = "/" + path.strip("/")
    taken = {resource.canonical.split("/")[1] for resource in app.router.resources()}
    if prefix == "/" or not path.startswith("/") or prefix.split("/")[1] in taken:
        raise BootError(f"pages cannot be served at {path!r}", remedy="choose a path of their own, like /chat")
    root = folder.resolve()
    if not root.is_dir():
        raise BootError(f"there is no folder {folder}", remedy="app.pages takes the folder that holds index.html")
    headers = {
        "Content-Security-Policy": PROGRAM_POLICY if policy is None else policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        hdrs.CACHE_CONTROL: "no-cache",
    }

    async def file(request: web.Request) -> web.StreamResponse:
        found = _found(root, request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        known = CONTENT_TYPES.get(found.suffix.lower())
        return web.FileResponse(found, headers={**headers, hdrs.CONTENT_TYPE: known} if known else headers)

    async def slash(request: web.Request) -> web.StreamResponse:
        """With its slash, a page's own files are below it."""
        return web.Response(status=308, headers={hdrs.LOCATION: f"{prefix}/"})

    app.router.add_get(prefix, slash)
    app.router.add_get(prefix + "/{name:.*}", file)


def _found(root: Path, name: str) -> Path | None:
    """The file a name stands for, or None."""
    if "\0" in name or any(part.startswith(".") for part in name.split("/")):
        return None
    try:
        found = (root / name / INDEX if name == "" or name.endswith("/") else root / name).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, RuntimeError):  # no file has such a long name; links lead in a circle
        return None
