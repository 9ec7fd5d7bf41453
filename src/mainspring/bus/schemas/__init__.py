"""What payloads look like: versions, compatibility, validation, and old events in the shape of today."""

from __future__ import annotations

from mainspring.bus.schemas.validator import schema_of

__all__ = ["schema_of"]
