"""Topics: their settings, the ends of their partitions, and what they keep."""

from __future__ import annotations

from mainspring.bus.topics.config import topic_from

__all__ = ["topic_from"]
