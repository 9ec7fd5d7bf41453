"""The log in a NATS JetStream stream, shared by several nodes.

| module | what it is |
|---|---|
| engine | `JetStreamEngine`: a commit is one message; what the stream brings is applied to the replica |
| address | what a user writes after `--engine`, and what the client needs to sign in |
| connection | staying connected: one link to one server at a time |
| stream | the stream that is the log: making it, finding it, its settings |
| encoding | how a commit looks in the stream |
| sender | storing one message for certain, or saying exactly what is known |
| follower | receiving every message once, in order |
| replica | this node's copy of the log, a SQLite file |
| snapshots | whole replicas in the object store, and dropping messages that they replace |
| startup | finding the stream, and having a replica of it |
| inspect | looking at the stream without being a node; what an acknowledgement means |

Importing this package does not need `nats-py`; using it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainspring.errors import MissingExtra
from mainspring.lazy_imports import lazy_imports
from mainspring.log.contract import EngineSetup, Inspection

if TYPE_CHECKING:
    from mainspring.log.engines.nats.engine import JetStreamEngine as JetStreamEngine

__getattr__ = lazy_imports(globals(), {"mainspring.log.engines.nats.engine": "JetStreamEngine"})


class JetStreamFactory:
    """Addresses `nats://` and `tls://`. See `EngineFactory`."""

    package = "nats-py"
    install = "pip install 'mainspring[nats]'"

    def open(self, address: str, setup: EngineSetup) -> JetStreamEngine:
        self._need_driver()
        from mainspring.log.engines.nats.address import parse
        from mainspring.log.engines.nats.engine import JetStreamEngine

        where = parse(address)
        return JetStreamEngine(where, Path(setup.data_dir) / f"nats-{where.name}.sqlite3")

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        self._need_driver()
        from mainspring.log.engines.nats.inspect import inspect_stream

        return await inspect_stream(address)

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        self._need_driver()
        from mainspring.log.engines.nats.inspect import make_stream

        return await make_stream(address)

    def _need_driver(self) -> None:
        try:
            import nats  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtra(f"the NATS engine needs the package {self.package}", remedy=self.install) from error


FACTORY: Final = JetStreamFactory()
