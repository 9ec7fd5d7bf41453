"""Events that happened on other nodes of a shared log, for the connections of this one.

Handlers of an event are called on the node where it happened, and nowhere else: what they do must be done once. But a
connection that subscribed to events does not know, and need not know, which node something happened on. So what the
log's news tell is streamed to the connections of every node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring.kernel import Kernel
from mainspring.log import Change, Log
from mainspring.message import Message, encode_data


def hear_others(kernel: Kernel, log: Log | None, heard: Callable[[Change], object]) -> None:
    """Call with what other nodes commit, as long as a connection of this node listens to events."""

    def hear(change: Change) -> None:
        if not change.own and kernel.exchange.streams:
            heard(change)

    if log is not None:
        log.watch(hear)


def stream(kernel: Kernel, type: str, data: dict[str, Any], *, causation: str | None = None) -> None:
    """Let the connections that subscribed to the type hear an event of another node."""
    exchange = kernel.exchange

    def turn(event: Message) -> None:
        for listener, wanted in tuple(exchange.streams.items()):
            if wanted(event.type):
                listener.stream(event)

    exchange.loop.post(turn, exchange.make("event", type, encode_data(data), causation=causation))
