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
