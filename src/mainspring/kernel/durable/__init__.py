"""Durable commands: they survive the node."""
