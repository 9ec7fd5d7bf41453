"""The log in a NATS JetStream stream, shared by several nodes."""

from mainspring.log.jetstream.engine import JetStreamEngine

__all__ = ["JetStreamEngine"]
