"""What payloads look like.

registry        the versions of each topic's schema, kept in the log; checks what is published
compatibility   whether data written with one schema can be read with another
validator       whether a payload fits: JSON Schema, Python types, and a quick answer for plain schemas
upcasting       old events in the shape of today, when they are read
"""

from __future__ import annotations

from mainspring.bus.schemas.registry import SCHEMA_HEADER, Compatibility, SchemaCheck, SchemaRegistry, SchemaVersion
from mainspring.bus.schemas.validator import schema_of

__all__ = ["SCHEMA_HEADER", "Compatibility", "SchemaCheck", "SchemaRegistry", "SchemaVersion", "schema_of"]
