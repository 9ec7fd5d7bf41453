"""The adapters of a node: WebSocket, HTTP and NDJSON. Bytes in, calls out; no rules of their own.

- `websocket`: the bus over WebSocket. `ndjson`: the kernel's socket. `ndjson_port`: its lines over TCP.
  `batch`: the same lines from standard input.
- `connections`: how many connections the port has, and how long one may keep the node waiting.
- `asgi`: HTTP, WebSocket and dashboard inside another web application.
- `http/`: every HTTP operation, and the pages on the same port.
- `health`: the parts of a node that can be observed; whether it lives and is ready. `metrics`: its numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.server.asgi import AsgiFace as AsgiFace
    from mainspring.server.batch import run_batch as run_batch
    from mainspring.server.connections import Connections as Connections
    from mainspring.server.connections import GuardedRunner as GuardedRunner
    from mainspring.server.connections import forget_applications as forget_applications
    from mainspring.server.health import LostLeases as LostLeases
    from mainspring.server.health import NodeParts as NodeParts
    from mainspring.server.ndjson import NdjsonServer as NdjsonServer
    from mainspring.server.ndjson_port import NdjsonPort as NdjsonPort
    from mainspring.server.ndjson_port import listen_address as listen_address
    from mainspring.server.websocket import add_websocket as add_websocket

_HOMES: Final = {
    "mainspring.server.asgi": "AsgiFace",
    "mainspring.server.batch": "run_batch",
    "mainspring.server.connections": "Connections GuardedRunner forget_applications",
    "mainspring.server.health": "LostLeases NodeParts",
    "mainspring.server.ndjson": "NdjsonServer",
    "mainspring.server.ndjson_port": "NdjsonPort listen_address",
    "mainspring.server.websocket": "add_websocket",
}
__getattr__ = lazy_imports(globals(), _HOMES)
