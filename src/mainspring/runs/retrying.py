"""A handler that is asked again when it raises: services are away for a moment, and a run need not fail for that.

The attempts are one effect: the program waits, and what the last attempt gives is the answer. What a failed attempt put
into the batch is taken back. Attempts are not written down; after a crash they are counted from the first again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from mainspring.runs.context import Context

logger: logging.Logger = logging.getLogger("mainspring.runs")


def retrying(
    handler: Callable[[Any, Context], Any], max_attempts: int, pause_ms: Callable[[int], float]
) -> Callable[[Any, Context], Any]:
    """The handler, asked up to `max_attempts` times; `pause_ms` of an attempt is how long to wait after it failed."""
    if max_attempts < 1:
        raise ValueError(f"max_attempts is {max_attempts}, and a handler is asked at least once")

    async def ask(effect: Any, ctx: Context) -> Any:
        attempt = 1
        while True:
            try:
                answer = handler(effect, ctx)
                return await answer if inspect.isawaitable(answer) else answer
            except Exception as error:
                if attempt >= max_attempts:
                    raise
                name, told = type(effect).__name__, f"{type(error).__name__}: {error}"
                logger.warning("run %s: attempt %d of %d of %s: %s", ctx.run_id, attempt, max_attempts, name, told)
                ctx.forget_writes()
                if not await ctx.pause(pause_ms(attempt)):
                    raise  # the node stops; whoever goes on with the run begins with the first attempt
            attempt += 1

    return ask
