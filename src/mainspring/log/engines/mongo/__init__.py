"""The log in MongoDB, shared by any number of nodes.

| module | what it is |
|---|---|
| engine | `MongoEngine`: plan, store, plan again when another node was faster; reads; preparing a database |
| connection | the address, the driver's client, what its errors mean, retrying |
| journal | every commit is one document: storing entries, reading them, following them |
| plan | deciding a commit in memory: what this node holds of the log, offsets, versions, refusals |
| applier | putting entries in place in the collections, whose turn it is, deleting old ones |
| documents | what is in the database, as collections, indexes and documents; `MongoReader` |

Importing this package does not need `pymongo`; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports
from mainspring.log.contract import PluginFactory

if TYPE_CHECKING:
    from mainspring.log.engines.mongo.engine import MongoEngine as MongoEngine

__getattr__ = lazy_imports(globals(), {"mainspring.log.engines.mongo.engine": "MongoEngine"})


FACTORY: Final = PluginFactory(
    "mongodb",
    driver="pymongo",
    package="pymongo",
    install="pip install 'mainspring[mongo]'",
    home="mainspring.log.engines.mongo.engine",
)
