"""Whatever happens to the nodes: what the log accepted under a lease was accepted while nobody else had taken it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.log import Batch, Change, SharedMemoryEngine
from mainspring.loop import VirtualClock, run_virtual
from tests.support.cluster import LEASE_MS, Member, World, wait

NAMES = ("a", "b", "c")
ACTIONS = ("wait", "cut", "join", "stop", "go on", "kill", "leave", "lose", "keep", "write")
steps = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.sampled_from([0, 1, LEASE_MS // 2, LEASE_MS * 2])),
    min_size=5,
    max_size=30,
)


class History:
    """What the log accepted, in its order."""

    def __init__(self) -> None:
        self.leases: dict[str, int] = {}
        self.gone: set[int] = set()
        self.role: tuple[int, int] | None = None
        self.ever: list[int] = []

    def heard(self, change: Change) -> None:
        for record in change.records:
            if record.space == "leases" and record.key.startswith("node/"):
                if record.key in self.leases:
                    self.gone.add(self.leases.pop(record.key))
                if record.version:
                    assert record.version not in self.ever, "an epoch was given twice"
                    self.ever.append(record.version)
                    self.leases[record.key] = record.version
            elif record.space == "proof":
                node, epoch = record.value.decode().split()
                assert self.leases.get(f"node/{node}") == int(epoch), "written under a lease that was gone"


async def try_write(member: Member, role: Any) -> None:
    for guard in (member.cluster, role):
        batch = Batch()
        guard.guard(batch)
        batch.put("proof", guard.name if guard is role else "node", f"{member.name} {member.cluster.epoch}".encode())
        member.log.submit(batch, lambda _: None)


async def arrive_late(door: SharedMemoryEngine, member: Member) -> None:
    """What the member sent before it was stopped or cut off reaches the log now."""
    batch = Batch()
    member.cluster.guard(batch)
    batch.put("proof", "late", f"{member.name} {member.cluster.epoch}".encode())
    await door.commit([batch])


async def story(world: World, plan: list[tuple[str, str, int]]) -> None:
    history = History()
    observer = world.shared.engine()
    await observer.open()
    observer.watch(history.heard)
    members = {name: await world.node(name, home=name) for name in NAMES}
    roles = {name: members[name].want("work") for name in NAMES}
    state = dict.fromkeys(NAMES, "well")
    for what, name, ms in plan:
        member = members[name]
        await wait(ms)
        if what == "cut" and state[name] == "well":
            member.engine.cut_off, state[name] = True, "cut"
        elif what == "join" and state[name] == "cut":
            await arrive_late(observer, member)
            member.engine.join_again()
            state[name] = "well"
        elif what == "stop" and state[name] == "well":
            member.stop()
            state[name] = "stopped"
        elif what == "go on" and state[name] == "stopped":
            await arrive_late(observer, member)
            member.go_on()
            state[name] = "well"
        elif what in ("kill", "leave") and state[name] == "well":
            await member.leave() if what == "leave" else member.kill()
            members[name] = await world.node(name, home=name)
            roles[name] = members[name].want("work")
        elif what in ("lose", "keep"):
            member.engine.lose_answers = what == "lose"
        elif what == "write" and state[name] != "stopped":
            await try_write(member, roles[name])
    for name, member in members.items():
        member.engine.lose_answers = False
        if state[name] == "stopped":
            member.go_on()
        else:
            member.engine.join_again()
    await wait(4 * LEASE_MS)
    alive = sorted(history.leases.values())
    for name, member in members.items():
        assert sorted(node.epoch for node in member.cluster.nodes()) == alive
        assert member.cluster.in_touch
        assert await member.write(name)
        assert all(member.cluster.alive(epoch) == (epoch in alive) for epoch in history.ever)
        assert len(set(member.deaths)) == len(member.deaths), "a death was told twice"
    assert [role.held for role in roles.values()].count(True) == 1
    holder = next(name for name in NAMES if roles[name].held)
    assert await members[holder].write("x", roles[holder])
    assert not any([await members[name].write("x", roles[name]) for name in NAMES if name != holder])


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_leases_and_roles_hold_through_cuts_pauses_and_deaths(plan: list[tuple[str, str, int]]) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)

    async def tell() -> None:
        await story(World(clock), plan)

    run_virtual(tell(), clock=clock)
