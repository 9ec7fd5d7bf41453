"""What a user of Celery or DBOS expects of tasks."""

from __future__ import annotations

from mainspring import App
from tests.expectations.conftest import Start


async def test_a_task_is_done_later_and_again_when_it_failed(start: Start) -> None:
    app, sent = App("shop"), []

    @app.task(backoff="10ms")
    async def send_mail(to: str, *, subject: str = "hello") -> None:
        sent.append((to, subject))
        if len(sent) == 1:
            raise ConnectionError("no mail server")

    async with start(app) as node:
        await send_mail.enqueue("ada", subject="your order")
        await node.until(lambda: len(sent) == 2)
        assert sent == [("ada", "your order")] * 2


def mailer() -> App:
    app = App("mailer")

    @app.task
    async def send_mail(to: str) -> None:
        await app.publisher("mails", to)  # type: ignore[misc]

    app.state.send_mail = send_mail
    return app


async def test_a_task_that_was_enqueued_survives_a_crash(start: Start) -> None:
    async with start(mailer) as node:
        await node.enqueue(mailer().state.send_mail, "ada")
        await node.crash()
        await node.until(lambda: node.events("mails"))
