"""What goes wrong in a simulation: each kind of fault, when it comes, and what it does.

A fault is chosen before the run begins, from the seed, and lasts for a limited time: when a run has had its faults,
everything must come to rest by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from mainspring.testing.simulation.disk import SERVER, Disk
from mainspring.testing.simulation.machines import NodeMachine, System

Strike = Callable[[System, random.Random], str]  # does it; says what was done, empty if there was nothing to do it to


def _machine(system: System, source: random.Random) -> NodeMachine:
    return source.choice(system.machines)


def kill(system: System, source: random.Random) -> str:
    machine, down = _machine(system, source), source.choice((0, 50, 500, 5_000))
    if not machine.is_up:
        return ""
    machine.kill(down)
    return f"{machine.name} is killed, for {down} ms"


def power_cut(system: System, source: random.Random) -> str:
    machine, down = _machine(system, source), source.choice((200, 2_000, 8_000))
    if not machine.is_up:
        return ""
    machine.kill(down, silently=True)
    return f"{machine.name} has no power, for {down} ms"


def restart(system: System, source: random.Random) -> str:
    machine = _machine(system, source)
    if not machine.is_ready:
        return ""
    machine.stop(source.choice((0, 100, 3_000)))
    return f"{machine.name} is stopped in order and started again"


def stall(system: System, source: random.Random) -> str:
    machine, ms = _machine(system, source), source.choice((30, 300, 2_500, 6_000))
    if machine.process is None:
        return ""
    machine.process.stall(ms)
    return f"{machine.name} stalls for {ms} ms"


def drainer_kill(system: System, source: random.Random) -> str:
    drainer, down = source.choice(system.drainers), source.choice((0, 500, 5_000))
    if drainer.process is None:
        return ""
    drainer.kill(down)
    return f"{drainer.name} is killed, for {down} ms"


def client_stall(system: System, source: random.Random) -> str:
    process, ms = source.choice(system.outside), source.choice((300, 2_500, 6_000))
    process.stall(ms)
    return f"{process.host} stalls for {ms} ms"


def partition(system: System, source: random.Random) -> str:
    return _cut(system, source, [process.host for process in system.outside])


def log_out_of_reach(system: System, source: random.Random) -> str:
    return _cut(system, source, [SERVER])


def _cut(system: System, source: random.Random, others: list[str]) -> str:
    here, there, ms = _machine(system, source).name, source.choice(others), source.choice((20, 1_000, 4_000, 9_000))
    ways = source.choice((((here, there), (there, here)), ((here, there),), ((there, here),)))
    for way in ways:
        system.network.cut(*way, ms)
    return f"nothing gets {' and '.join(f'from {one} to {other}' for one, other in ways)} for {ms} ms"


def slow_network(system: System, source: random.Random) -> str:
    host, ms = _machine(system, source).name, source.choice((200, 2_000))
    system.network.slow(host, ms)
    return f"the network of {host} is slow for {ms} ms"


def reset(system: System, source: random.Random) -> str:
    end = system.network.pick(source)
    if end is None:
        return ""
    end.reset()
    return f"a connection of {end.process.host} breaks"


def half_open(system: System, source: random.Random) -> str:
    end = system.network.pick(source)
    if end is None:
        return ""
    end.go_silent()
    return f"a connection of {end.process.host} is half-open"


def slow_reader(system: System, source: random.Random) -> str:
    end, ms = system.network.pick(source), source.choice((300, 3_000))
    if end is None:
        return ""
    (end if source.random() < 0.7 else end.peer).read_nothing(ms)
    return f"an end of a connection of {end.process.host} reads nothing for {ms} ms"


def clock_jump(system: System, source: random.Random) -> str:
    machine, ms = _machine(system, source), source.choice((-3_600_000, -5_000, 700, 60_000))
    machine.set_clock(ms)
    return f"the clock of {machine.name} jumps by {ms} ms"


def _disk_trouble(kind: str) -> Strike:
    def strike(system: System, source: random.Random) -> str:
        storage, ms = _machine(system, source).storage, source.choice((5, 100, 1_500))
        if not isinstance(storage, Disk):
            return ""
        storage.trouble(kind, ms)
        return f"the disk is {kind} for {ms} ms"

    return strike


def flip(system: System, source: random.Random) -> str:
    storage = _machine(system, source).storage
    confirmed = sorted(system.ledger.confirmed)
    if not isinstance(storage, Disk) or not confirmed:
        return ""
    place = source.choice(confirmed)
    storage.damaged.add(place)
    return f"bytes of {place} rot"


ALWAYS: Final[dict[str, Strike]] = {
    "kill": kill,
    "power cut": power_cut,
    "restart": restart,
    "stall": stall,
    "client stall": client_stall,
    "partition": partition,
    "slow network": slow_network,
    "reset": reset,
    "half-open": half_open,
    "slow reader": slow_reader,
    "clock jump": clock_jump,
}
ON_A_DISK: Final[dict[str, Strike]] = {  # of one node's own
    "disk full": _disk_trouble("full"),
    "disk errors": _disk_trouble("failing"),
    "slow disk": _disk_trouble("slow"),
    "bit flip": flip,
}
ON_A_SERVER: Final[dict[str, Strike]] = {"log out of reach": log_out_of_reach}  # that several nodes share
ON_AN_OUTBOX: Final[dict[str, Strike]] = {"drainer kill": drainer_kill}
KINDS: Final = {**ALWAYS, **ON_A_DISK, **ON_A_SERVER, **ON_AN_OUTBOX}
