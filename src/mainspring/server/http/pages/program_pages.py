"""Pages of the program: a folder of files, served below a path of the node's port.

A page from here has the node's own origin, so it may connect and needs nothing from elsewhere. That also means that a
script that gets into such a page acts with whatever the reader's browser may do on this node, the dashboard included.
So the pages come with a policy that runs only scripts of the node itself, unless the program brings its own.

Only files below the folder are served: what a name or a link leads to is found first and looked at then. Names that
begin with a dot are not served; what people keep in such files is seldom meant for everybody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from mainspring.errors import BootError

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

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "media-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


def add_pages(app: web.Application, path: str, folder: Path, policy: str | None = None) -> None:
    """Serve a folder below `path`. Raises `BootError` for a path the node needs, or a folder that is none."""
    prefix = "/" + path.strip("/")
    taken = {resource.canonical.split("/")[1] for resource in app.router.resources()}
    if prefix == "/" or not path.startswith("/") or prefix.split("/")[1] in taken:
        raise BootError(f"pages cannot be served at {path!r}", remedy="choose a path of their own, like /chat")
    root = folder.resolve()
    if not root.is_dir():
        raise BootError(f"there is no folder {folder}", remedy="app.pages takes the folder that holds index.html")
    headers = {
        "Content-Security-Policy": POLICY if policy is None else policy,
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
    found = (root / name / INDEX if name == "" or name.endswith("/") else root / name).resolve()
    return found if found.is_relative_to(root) and found.is_file() else None
