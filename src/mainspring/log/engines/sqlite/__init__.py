"""The log in one SQLite file."""

from mainspring.log.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
