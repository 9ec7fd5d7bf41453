"""Topics: their settings, the ends of their partitions, and what they keep."""

from __future__ import annotations

from mainspring.bus.topics.config import encode_topic, topic_from
from mainspring.bus.topics.tail import ReadyEvent

__all__ = ["ReadyEvent", "encode_topic", "topic_from"]
