"""What can keep a node from being one of several."""

from __future__ import annotations

from mainspring.errors import BootError


class NameTaken(BootError):
    """Another node of this name is alive. Names tell nodes apart, so the second one does not start."""

    code = "name_taken"

    def __init__(self, node: str, address: str = "") -> None:
        where = f" at {address}" if address else ""
        super().__init__(
            f"another node named {node!r} is alive{where}",
            remedy="give each node its own name with --node, and its own data directory",
        )


class NotDurable(BootError):
    """An acknowledgement of the engine, as it is configured, does not mean that nothing can be lost."""

    code = "not_durable"

    def __init__(self, statement: str) -> None:
        super().__init__(
            f"what the engine acknowledges could still be lost: {statement}",
            remedy="configure the server for it (docs/how-to/run-several-nodes.md), or start without --require-durable",
        )
