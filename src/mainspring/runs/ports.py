"""What `Ask`, `Publish` and `WaitEvent` need from the rest of a node.

Runs do not know the kernel or the bus. The node passes in objects of these shapes:

    runtime.connect(ask=..., publish=..., events=...)

Publishing from a durable run is exactly-once because the event is not published by the port but prepared by it: the
operations go into the batch that also holds the answer, and the port is called when that batch is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from mainspring.durations import Duration, duration_text
from mainspring.log import Prepared, add_prepared
from mainspring.runs.effects import Ask, Publish, WaitEvent
from mainspring.runs.handlers import EffectContext, Later
from mainspring.runs.values import encode


class AskPort(Protocol):
    """Reaches capabilities."""

    async def ask(self, type: str, data: Any, *, kind: str, timeout_ms: int | None, key: str) -> Any:
        """The data of the reply; raises what the asker should fail with. `key` is the same when asked again."""
        ...


class PublishPort(Protocol):
    """Reaches topics."""

    def prepare(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        id: str,
        ttl: Duration = 0,
    ) -> Prepared:
        """Check the event and say what must be stored to publish it. Raises when it may not be published."""
        ...

    async def publish(
        self, topic: str, payload: bytes, *, key: str | None, headers: Mapping[str, str] | None, ttl: Duration = 0
    ) -> str:
        """Publish at once, for runs without a journal; gives the event's id."""
        ...


class EventPort(Protocol):
    """Reads topics."""

    async def position(self, topic: str) -> Any:
        """Where the topic ends now, as a JSON value."""
        ...

    def follow(self, topic: str, position: Any) -> AsyncIterator[Mapping[str, Any]]:
        """The events after a position, as they come: mappings with at least `payload`."""
        ...


def ask_handler(port: AskPort) -> Callable[[Ask, EffectContext], Any]:
    async def ask(effect: Ask, ctx: EffectContext) -> Any:
        return await port.ask(effect.type, effect.data, kind=effect.kind, timeout_ms=effect.timeout_ms, key=ctx.key)

    return ask


def publish_handler(port: PublishPort) -> Callable[[Publish, EffectContext], Any]:
    def publish(effect: Publish, ctx: EffectContext) -> Any:
        payload = encode(effect.payload, "payload")
        if not ctx.durable:
            return port.publish(effect.topic, payload, key=effect.key, headers=effect.headers, ttl=effect.ttl)
        said: dict[str, Any] = {"key": effect.key, "headers": effect.headers, "ttl": effect.ttl}
        prepared = port.prepare(effect.topic, payload, id=ctx.key, **said)
        ctx.after_commit(add_prepared(ctx.batch, (prepared,)))
        return ctx.key

    return publish


def wait_event_handler(port: EventPort) -> Callable[[WaitEvent, EffectContext], Later]:
    def wait_event(effect: WaitEvent, ctx: EffectContext) -> Later:
        later = ctx.later()
        known = ctx.recall() or {}

        async def watch() -> None:
            try:
                position = known.get("position")
                if position is None:
                    position = await port.position(effect.topic)
                    ctx.remember({"position": position, "until": until})
                async for event in port.follow(effect.topic, position):
                    if matches(event, effect.filter):
                        if not later.answered:
                            later.resume(dict(event))
                        return
            except Exception as error:
                if not later.answered:
                    later.fail(error)

        until = known.get("until")
        if until is None and effect.timeout_ms is not None:
            until = ctx.wall_ms() + effect.timeout_ms
        if until is not None:
            waited = f"no such event of {effect.topic!r} came within {duration_text(effect.timeout_ms or 0)}"
            left = min(effect.timeout_ms or 0, max(0, until - ctx.wall_ms()))  # the clock may have been set back
            ctx.after(left, lambda: later.time_out(waited))
        task = asyncio.get_running_loop().create_task(watch())
        ctx.on_release(task.cancel)
        return later

    return wait_event


def matches(event: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether the payload has every wanted field with the wanted value; nested mappings are compared the same way."""
    return wanted is None or _has(event.get("payload"), wanted)


def _has(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(key in value and _has(value[key], wanted[key]) for key in wanted)
    return bool(value == wanted)
