"""What a user of Celery beat expects of schedules."""

from __future__ import annotations

from mainspring import App, Event
from tests.expectations.conftest import Start


def report() -> App:
    app = App("report")

    @app.every("50ms")
    async def tick(event: Event[None]) -> None:
        event.publish("ticks", "tick")

    return app


async def test_a_schedule_goes_on_after_a_crash(start: Start) -> None:
    async with start(report) as node:
        await node.until(lambda: node.events("ticks"))
        await node.crash()
        before = len(await node.events("ticks"))

        async def more() -> bool:
            return len(await node.events("ticks")) > before

        await node.until(more)
