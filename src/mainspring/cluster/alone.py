"""The cluster of a node that owns its log: nobody else is there, so everything is held and nothing needs a guard."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.cluster.cluster import About, NodeView
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
    trouble = ""

    def __init__(self, node: str = "node", *, about: Callable[[], About] = About, started: int = 0) -> None:
        self.node = node
        self._about = about
        self._started = started

    def guard(self, batch: Batch) -> None:
        """Nothing to guard against."""

    def alive(self, epoch: int) -> bool:
        return epoch == 0

    def nodes(self) -> list[NodeView]:
        about = self._about()
        return [
            NodeView(
                name=self.node,
                epoch=0,
                address=about.address,
                since=self._started,
                version=about.version,
                serves=list(about.serves),
                program=about.program,
                able=list(about.able),
                here=True,
            )
        ]

    def announce(self) -> None:
        """Nobody to tell."""

    def on_death(self, callback: Callable[[int], None]) -> None:
        """Nobody else can die."""

    def on_fenced(self, callback: Callable[[int], None]) -> None:
        """Nobody can take the lease away."""

    def role(self, name: str) -> AlwaysHeld:
        return AlwaysHeld(name)
