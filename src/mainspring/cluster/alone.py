"""The cluster of a node that owns its log: nobody else is there, so everything is held and nothing needs a guard."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.cluster.contract import NodeView
from mainspring.log import Batch


class AlwaysHeld:
    """A role nobody else could want."""

    held = True

    def __init__(self, name: str) -> None:
        self.name = name

    def guard(self, batch: Batch) -> None:
        """Nothing to guard against."""

    def on_change(self, callback: Callable[[bool], None]) -> None:
        callback(True)


class Alone:
    """A node on an embedded engine."""

    epoch = 0
    in_touch = True

    def __init__(self, node: str = "node") -> None:
        self.node = node

    def guard(self, batch: Batch) -> None:
        """Nothing to guard against."""

    def alive(self, epoch: int) -> bool:
        return epoch == 0

    def nodes(self) -> list[NodeView]:
        return [NodeView(name=self.node, epoch=0, here=True)]

    def on_death(self, callback: Callable[[int], None]) -> None:
        """Nobody else can die."""

    def on_fenced(self, callback: Callable[[int], None]) -> None:
        """Nobody can take the lease away."""

    def role(self, name: str) -> AlwaysHeld:
        return AlwaysHeld(name)
