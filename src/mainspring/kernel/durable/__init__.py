"""Durable commands: they survive the node.

- `commands`: accepting, running and finishing them
- `recovery`: those that no living node has are taken over; outcomes whose time is up are removed
- `record`: a command as the log keeps it
"""
