"""The log in MongoDB, shared by any number of nodes. Importing it raises `MissingExtra` without the driver."""

from __future__ import annotations

from mainspring.errors import MissingExtra

try:
    import pymongo as _driver  # noqa: F401
except ImportError:
    raise MissingExtra(
        "the engine mongodb:// needs the package pymongo", remedy="pip install 'mainspring[mongo]'"
    ) from None

from mainspring.log.engines.mongo.engine import MongoEngine, init

__all__ = ["MongoEngine", "init"]
