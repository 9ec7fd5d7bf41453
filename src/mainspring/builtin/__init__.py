"""The built-in capabilities: what every node can be asked.

- `syscall`: the node about itself: ping, describe, outcomes, traces, other nodes
- `timer`: messages that are sent later
- `memory`: values under paths
- `events`: events streamed to a connection
- `bus`: topics, events and groups
- `runs`: durable runs, and what runs need from a node
- `beats`: signals, beats and their state
- `answers`: what they share
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.builtin.events import event_capability
from mainspring.builtin.memory import SPACE as MEMORY
from mainspring.builtin.memory import memory_capability, read_value
from mainspring.builtin.syscall import syscall_capability
from mainspring.builtin.timer import timer_capability
from mainspring.kernel import Capability, Kernel
from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.builtin.beats import beat_capability as beat_capability
    from mainspring.builtin.bus import bus_capability as bus_capability
    from mainspring.builtin.runs import BusPort as BusPort
    from mainspring.builtin.runs import KernelPort as KernelPort
    from mainspring.builtin.runs import run as run
    from mainspring.status import AttentionDesk

_HOMES: Final = {
    "mainspring.builtin.beats": "beat_capability",
    "mainspring.builtin.bus": "bus_capability",
    "mainspring.builtin.runs": "BusPort KernelPort run",
}
__all__ = [
    "MEMORY",
    "event_capability",
    "kernel_capabilities",
    "memory_capability",
    "read_value",
    "syscall_capability",
    "timer_capability",
]
__getattr__ = lazy_imports(globals(), _HOMES)  # a kernel alone needs no bus, no runs and no beats


def kernel_capabilities(kernel: Kernel, attention: AttentionDesk | None = None) -> list[Capability]:
    """Syscall, Timer, Memory and Event of this kernel, to be registered before the application's own.

    `attention` knows what needs a person; without it only what the kernel knows is told.
    """
    return [
        syscall_capability(kernel, attention),
        timer_capability(kernel),
        memory_capability(kernel),
        event_capability(kernel),
    ]
