"""The log in a NATS JetStream stream, shared by several nodes.

| module | what it is |
|---|---|
| engine | `JetStreamEngine`: a commit is one message; what comes is applied to the replica; having a replica |
| address | what a user writes after `--engine`, and what the client needs to sign in |
| connection | staying connected: one link to one server at a time |
| stream | the stream that is the log: making it, finding it, its settings, what an acknowledgement means |
| encoding | how a commit looks in the stream |
| messages | storing one message for certain, or saying exactly what is known; receiving all, each once, in order |
| history | which messages a node has seen, and whether servers and other nodes have the same history |
| replica | this node's copy of the log, a SQLite file |
| snapshots | whole replicas in the object store, and dropping messages that they replace |

Importing this package does not need `nats-py`; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports
from mainspring.log.contract import PluginFactory

if TYPE_CHECKING:
    from mainspring.log.engines.nats.engine import JetStreamEngine as JetStreamEngine

__getattr__ = lazy_imports(globals(), {"mainspring.log.engines.nats.engine": "JetStreamEngine"})

FACTORY: Final = PluginFactory(
    "nats",
    driver="nats",
    package="nats-py",
    install="pip install 'mainspring[nats]'",
    home="mainspring.log.engines.nats.engine",
)
