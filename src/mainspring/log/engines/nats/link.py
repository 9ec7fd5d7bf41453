"""A **link**: one connection to one server, and asking over it.

A link that breaks stays broken. Everything that waits on it hears so at once, and nothing is ever sent again behind
anybody's back: whoever asked knows what was asked, and decides.

(`asyncio.timeout` and never `asyncio.wait_for`: in Python 3.11 the latter can swallow a cancellation that comes in the
same moment as the result.)
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

API_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
CANCEL_SECONDS: Final = 0.25

NO_STREAM: Final = 10059
NO_RESPONDERS: Final = 503
FORBIDDEN: Final = 403

_logger = logging.getLogger(__name__)


class LinkLost(Exception):
    """The link broke before the answer came: whether the server did what was asked is unknown."""


class ApiError(Exception):
    """JetStream said no. `code` is its own, more exact number (10059: no such stream)."""

    def __init__(self, status: int, code: int, description: str) -> None:
        super().__init__(f"{description} ({code or status})")
        self.status = status
        self.code = code


class Link:
    """One connection to one server, from its making to its end."""

    def __init__(self, client: Client, lost: asyncio.Event) -> None:
        self.client = client
        self.lost = lost
        self._inbox = client.new_inbox()
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}  # who asked what, by the answer's subject
        self._asked = 0

    async def start(self) -> None:
        await self.client.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _answered(self, message: Msg) -> None:
        _, answer = self._waiting.pop(message.subject.rpartition(".")[2], ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def complained(self, error: Exception) -> None:
        """The server said something that is no answer. If it forbids what somebody asked for, they need not wait."""
        text = str(error)
        if "permissions violation" not in text.lower():
            return
        _logger.warning("the NATS server forbids something: %s", text)
        for subject, answer in list(self._waiting.values()):
            if subject.lower() in text.lower() and not answer.done():
                answer.set_exception(ApiError(FORBIDDEN, 0, text))

    async def ask(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None, seconds: float = API_SECONDS
    ) -> Any:
        """The answer, from JSON. Raises `ApiError`, `LinkLost`, or `TimeoutError`."""
        if self.lost.is_set():
            raise LinkLost
        self._asked += 1
        token = str(self._asked)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (subject, answer)
        try:
            await self.client.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            async with asyncio.timeout(seconds):
                message = await answer
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            self.end()
            raise LinkLost from error
        finally:
            self._waiting.pop(token, None)
        if message.headers and message.headers.get("Status") == str(NO_RESPONDERS):
            raise ApiError(NO_RESPONDERS, NO_RESPONDERS, "nobody answers: JetStream is off, or has no leader now")
        reply = msgspec.json.decode(message.data)
        if isinstance(reply, dict) and "error" in reply:
            refusal = reply["error"]
            raise ApiError(refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", "refused"))
        return reply

    async def api(self, verb: str, body: object = None, *, seconds: float = API_SECONDS) -> Any:
        """One request of the JetStream API."""
        payload = b"" if body is None else msgspec.json.encode(body)
        return await self.ask(f"$JS.API.{verb}", payload, seconds=seconds)

    async def broken(self) -> None:
        """Returns when the link is lost. The client tells only once a broken socket is closed, which takes long with
        TLS; so its state is looked at, too."""
        while not self.lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.lost.wait()
            if not self.client.is_connected:
                self.end()

    def end(self) -> None:
        """Whoever waits on it hears that it is lost."""
        self.lost.set()
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost())
                answer.exception()  # whoever asked may have stopped waiting; then nobody looks at it
        self._waiting.clear()


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel until it is done: what the task awaits in `nats-py` may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
