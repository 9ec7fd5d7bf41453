"""`manage.py mainspring`: the node of the project, and the drainer that carries the outbox to it, in one process.

Started a second time on the same data, it stands by: it becomes the node when the first one goes.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from mainspring.contrib.django.conf import DjangoSettings, read_settings
from mainspring.contrib.django.node import drainer_of, serve
from mainspring.errors import MainspringError
from mainspring.outbox import Drainer

if TYPE_CHECKING:
    BaseCommand = object  # Django has no types of its own
else:
    from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Serves the App that `MAINSPRING["app"]` names."""

    help: str = "Run the project's Mainspring node, and publish what the outbox holds."

    stdout: Any

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--database", default="default", help="The database whose outbox is published.")
        parser.add_argument("--no-outbox", action="store_true", help="Leave the outbox to another process.")

    def handle(self, *_: Any, **options: Any) -> None:
        settings = read_settings()
        if not settings.app:
            raise CommandError('say which App to run: MAINSPRING = {"app": "shop.events:app"}')
        drainer = None if options["no_outbox"] else drainer_of(settings, options["database"])
        try:
            asyncio.run(self.serve(settings, drainer))
        except MainspringError as error:
            raise CommandError(str(error)) from error

    async def serve(self, settings: DjangoSettings, drainer: Drainer | None) -> None:
        """Until a signal."""
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)

        def ready() -> None:
            self.stdout.write(f"{settings.app} is ready; the dashboard is at {settings.dashboard}")
            self.stdout.flush()

        await serve(settings, drainer, stopping, ready)
