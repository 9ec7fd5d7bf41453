"""The built-in capabilities: what every node can be asked."""

from __future__ import annotations

from mainspring.builtin.events import event
from mainspring.builtin.memory import memory
from mainspring.builtin.syscall import syscall
from mainspring.builtin.timer import timer
from mainspring.kernel import Capability, Kernel


def kernel_capabilities(kernel: Kernel) -> list[Capability]:
    """Syscall, Timer, Memory and Event of this kernel, to be registered before the application's own."""
    return [syscall(kernel), timer(kernel), memory(kernel), event(kernel)]


__all__ = ["event", "kernel_capabilities", "memory", "syscall", "timer"]
