"""How long a round is, and what is said when one fails."""

from __future__ import annotations

import os

from tests.chaos.arena import ENOUGH, Arena

SECONDS = float(os.environ.get("CHAOS_SECONDS", "25"))
_FIRST = int(os.environ.get("CHAOS_SEED", "1"))
SEEDS = range(_FIRST, _FIRST + int(os.environ.get("CHAOS_ROUNDS", "1")))


async def what_went_wrong(arena: Arena, seconds: float) -> str:
    """Run a round. Every broken promise, what was done before, and what the nodes said last; empty when all held."""
    try:
        history = await arena.run(seconds)
    except Exception as error:
        error.add_note("\n".join([f"after: {'; '.join(arena.faults)}", *_last_words(arena)]))
        raise
    done = f"{len(history.confirmed)} events, {len(history.expected_runs)} runs, after: {'; '.join(arena.faults)}"
    wrong = history.violations()[:20]
    if len(history.confirmed) < ENOUGH or not history.expected_runs or not history.firings:
        wrong.append("too little happened to prove anything")
    if not wrong:
        print(done)
        return ""
    return "\n".join([*wrong, done, *_last_words(arena)])


def _last_words(arena: Arena) -> list[str]:
    return [f"--- {node.name}\n{node.errors()}" for node in arena.nodes]
