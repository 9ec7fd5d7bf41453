"""The log in one SQLite file."""

from mainspring.log.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
