"""The log in PostgreSQL, shared by any number of nodes that keep no copy of it.

| module | what it is |
|---|---|
| engine | `PostgresEngine`: one transaction for each commit; following other nodes; preparing a database |
| connection | the address, the driver's connections, what its errors mean, what an acknowledgement means |
| tables | what is in the schema: tables, their versions, how a chunk of events and a commit are written |
| plan | deciding a commit: what this node knows of the log, offsets, versions, refusals |
| reader | answers to readers, from the tables |
| recent | events that this node has just written, kept for readers |

Importing this package does not need `asyncpg`; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports
from mainspring.log.contract import PluginFactory

if TYPE_CHECKING:
    from mainspring.log.engines.postgres.engine import PostgresEngine as PostgresEngine

__getattr__ = lazy_imports(globals(), {"mainspring.log.engines.postgres.engine": "PostgresEngine"})

FACTORY: Final = PluginFactory(
    "postgresql",
    driver="asyncpg",
    package="asyncpg",
    install="pip install 'mainspring[postgres]'",
    home="mainspring.log.engines.postgres.engine",
)
