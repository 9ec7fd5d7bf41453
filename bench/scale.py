"""What several nodes on one log can do: a model of their cost, and a simulation that it is checked against.

The model says how many events a second nodes can publish when the processor of each is the limit, each node has one
core for it, and publishing is spread evenly. Of each event one node is the writer and the others are followers:

    one log                     nodes / (writer + followers * follower)
    a log for each few nodes    logs * that of the nodes of one log

The simulation knows nothing of the formula. It lets nodes take turns at a log: each collects events while it is busy,
sends what it has as one commit, and applies every commit of the others, in order, at the cost of the constants below.
`docs/explanation/scale.md` has the table that `python -m bench.scale` prints; a test compares the three.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MOST_IN_A_COMMIT = 2_048


class NodeCost(NamedTuple):
    """Microseconds of one core: per event on the node that takes it and on each other node, and per commit."""

    writer: float
    follower: float
    writer_commit: float
    follower_commit: float


# Measured with `python -m bench.engines --cost` in one run on a slow machine with two cores, rounded (see scale.md).
NATS = NodeCost(writer=10.2, follower=1.6, writer_commit=960, follower_commit=138)
POSTGRESQL = NodeCost(writer=11, follower=0.16, writer_commit=870, follower_commit=305)  # of the nodes alone
SQLITE = NodeCost(writer=8.9, follower=0, writer_commit=560, follower_commit=0)  # has one node

SIZES = (1, 3, 10, 100)


def events_per_second(cost: NodeCost, nodes: int, *, in_a_commit: int = MOST_IN_A_COMMIT, logs: int = 1) -> float:
    """The model: nodes spread over `logs` logs, commits of one size."""
    on_one = nodes / logs
    writer = cost.writer + cost.writer_commit / in_a_commit
    follower = cost.follower + cost.follower_commit / in_a_commit
    return logs * 1e6 * on_one / (writer + (on_one - 1) * follower)


class SimulatedNode:
    """A node that always has events to publish, one core, and the commits of the others before it."""

    def __init__(self, cost: NodeCost, in_a_commit: int) -> None:
        self._cost = cost
        self._in_a_commit = in_a_commit
        self.free_at = 0.0  # microseconds
        self.to_follow: deque[tuple[float, int]] = deque()  # when it was stored, and how many events

    def turn(self) -> tuple[float, int]:
        """Apply what was stored by the others, then write one commit; when that is done, and its events."""
        cost = self._cost
        while self.to_follow and self.to_follow[0][0] <= self.free_at:
            _, events = self.to_follow.popleft()
            self.free_at += cost.follower_commit + events * cost.follower
        self.free_at += cost.writer_commit + self._in_a_commit * cost.writer
        return self.free_at, self._in_a_commit


def simulate(cost: NodeCost, nodes: int, *, in_a_commit: int = MOST_IN_A_COMMIT, turns: int = 40) -> float:
    """Events per second after so many turns of each node, without the first half in which they come into step."""
    all_nodes = [SimulatedNode(cost, in_a_commit) for _ in range(nodes)]
    done: list[tuple[float, int]] = []
    for _ in range(turns * nodes):
        node = min(all_nodes, key=lambda each: each.free_at)  # whose time has come; the log gives one order
        stored = node.turn()
        done.append(stored)
        for other in all_nodes:
            if other is not node:
                other.to_follow.append(stored)
    later = done[len(done) // 2 :]
    return 1e6 * sum(events for _, events in later[1:]) / (later[-1][0] - later[0][0])


def table() -> list[str]:
    """The rows of the table in scale.md: thousands of events a second that the nodes allow."""
    rows = []
    for nodes in SIZES:
        logs = max(1, nodes // 3)
        figures = (
            events_per_second(NATS, nodes),
            events_per_second(NATS, nodes, in_a_commit=1),
            events_per_second(NATS, nodes, logs=logs),
            events_per_second(POSTGRESQL, nodes),
            events_per_second(POSTGRESQL, nodes, in_a_commit=1),
        )
        batches, single, spread, postgresql, alone = (f"{figure / 1e3:.3g}" for figure in figures)
        rows.append(
            f"| {nodes} | {batches} | {single} | {float(spread):.0f} ({logs}) | {float(postgresql):.0f} | {alone} |"
        )
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
    for nodes in SIZES:
        print(
            f"{nodes} nodes on NATS: model {events_per_second(NATS, nodes):.0f}, simulation {simulate(NATS, nodes):.0f}"
        )
