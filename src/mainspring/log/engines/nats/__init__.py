"""The log in a NATS JetStream stream, shared by several nodes."""

from mainspring.log.engines.nats.engine import JetStreamEngine

__all__ = ["JetStreamEngine"]
