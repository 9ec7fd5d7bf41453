"""How long a round is, and what is said when one fails."""

from __future__ import annotations

import os

from chaos.arena import ENOUGH, Arena

SECONDS = float(os.environ.get("CHAOS_SECONDS", "25"))
_FIRST = int(os.environ.get("CHAOS_SEED", "1"))
SEEDS = range(_FIRST, _FIRST + int(os.environ.get("CHAOS_ROUNDS", "1")))


async def judge(arena: Arena, seconds: float) -> None:
    """Run the round; fail with every broken promise, what was done before, and what the nodes said last."""
    history = await arena.run(seconds)
    violations = history.violations()
    if violations:
        told = "\n".join(f"--- {node.name}\n{node.errors()}" for node in arena.nodes)
        raise AssertionError("\n".join([*violations[:20], "after: " + "; ".join(arena.faults), told]))
    assert len(history.confirmed) >= ENOUGH, "too little happened to prove anything"
    assert history.expected_runs
    assert history.firings
    print(f"{len(history.confirmed)} events, {len(history.expected_runs)} runs, after: {'; '.join(arena.faults)}")
