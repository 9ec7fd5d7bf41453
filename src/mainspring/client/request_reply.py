"""Request and reply over topics.

A request is an event with three headers: where the reply goes (`x-reply-to`, by default `<topic>.replies`), for whom it
is (`x-reply-for`, this client), and its own id, which comes back as `x-request-id`. Whoever consumes the topic answers
with an event on the reply topic. The client reads that topic in a group of its own, filtered by the node, so it gets
its own replies only.

A request is durable, like every event: a responder that is away answers when it is back, if anyone still waits. A reply
has an id made from the request's, so a request that was delivered twice is answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mainspring.client.errors import BadArgument, ClientError, NodeRefused, TimedOut
from mainspring.client.subscription import Event, Subscription
from mainspring.durations import Duration, seconds
from mainspring.loop import resolve, time_limit

if TYPE_CHECKING:
    from mainspring.client.client import Client

REPLY_TO: Final = "x-reply-to"
REPLY_FOR: Final = "x-reply-for"
REQUEST_ID: Final = "x-request-id"
ERROR: Final = "x-error"
KEPT_MS: Final = 3_600_000  # nobody waits for a reply for longer


class ReplyError(ClientError):
    """The responder answered with an error; `code` is its own."""

    code = "reply_error"


class Requests:
    """The requests of one client that wait for replies."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = client.new_id()
        self._waiting: dict[str, asyncio.Future[Event[Any]]] = {}
        self._inboxes: dict[str, asyncio.Task[Subscription[Any]]] = {}

    async def request(
        self, topic: str, payload: Any, key: str | None, headers: dict[str, str] | None, timeout: Duration, type: Any
    ) -> Any:
        reply_to = f"{topic}.replies"
        id = self._client.new_id()
        waiter: asyncio.Future[Event[Any]] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waiter
        try:
            async with time_limit(seconds(timeout)):
                await self._inbox(reply_to)
                carried = {**(headers or {}), REPLY_TO: reply_to, REPLY_FOR: self._name}
                await self._client.publish(topic, payload, key=key, headers=carried, id=id)
                reply = await waiter
        except TimeoutError:
            who = "a responder" if self._is_open(reply_to) else "the node"
            raise TimedOut(
                f"no reply on {topic!r} within {seconds(timeout):g} s", remedy=f"is {who} running?"
            ) from None
        finally:
            del self._waiting[id]
        if ERROR in reply.headers:
            raise ReplyError(str(reply.payload), code=reply.headers[ERROR])
        return self._client.decoder(type)(reply.raw_payload)

    async def _inbox(self, topic: str) -> None:
        """Be subscribed to the reply topic before anything is asked."""
        if topic not in self._inboxes:
            if not self._inboxes:
                self._client.on_close(self._close)
            self._inboxes[topic] = opening = asyncio.create_task(self._open(topic))
            opening.add_done_callback(lambda done: self._opened(topic, done))
        await asyncio.shield(self._inboxes[topic])

    def _opened(self, topic: str, opening: asyncio.Task[Subscription[Any]]) -> None:
        """One that failed is tried anew by the next request; those that waited for this one may be gone."""
        if (opening.cancelled() or opening.exception() is not None) and self._inboxes.get(topic) is opening:
            del self._inboxes[topic]

    def _is_open(self, topic: str) -> bool:
        return topic in self._inboxes and self._inboxes[topic].done()

    async def _open(self, topic: str) -> Subscription[Any]:
        await self._client.insist(lambda: self._have(topic))  # until those who wait give up, each in its own time
        inbox = self._client.subscribe(
            topic, group=f"reply:{self._name}", from_="latest", header=(REPLY_FOR, self._name), max_inflight=1_000
        )
        await inbox.confirmed()
        self._client.run(self._read(inbox), "replies")
        return inbox

    async def _have(self, topic: str) -> None:
        """See to it that the reply topic is there."""
        try:
            await self._client.http.call("GET", f"/topics/{quote(topic, safe='')}")
        except NodeRefused as error:
            if error.code != "unknown_topic":
                raise
            try:
                await self._client.put_topic(topic, retentionMs=KEPT_MS)
            except NodeRefused as refused:
                if refused.code != "forbidden":  # who may not create topics makes it by subscribing
                    raise

    async def _read(self, inbox: Subscription[Any]) -> None:
        async for reply in inbox:
            waiter = self._waiting.get(reply.headers.get(REQUEST_ID, ""))
            if waiter is not None:
                resolve(waiter, reply)
            await reply.ack()

    async def _close(self) -> None:
        """Leave nothing behind at the node."""
        for opening in list(self._inboxes.values()):
            opening.cancel()
            with contextlib.suppress(ClientError, asyncio.CancelledError):
                inbox = await opening
                await inbox.close()
                await self._client.http.call(
                    "DELETE", f"/groups/{quote(inbox.topic, safe='')}/{quote(inbox.group, safe='')}"
                )


async def reply(client: Client, request: Event[Any], payload: Any, error: str = "") -> None:
    """Answer a request. With `error` (a code) the requester gets an exception with `payload` as its text."""
    headers = request.headers
    if REPLY_TO not in headers:
        raise BadArgument(f"{request!r} is no request", remedy="publish it with `request`")
    carried = {REPLY_FOR: headers.get(REPLY_FOR, ""), REQUEST_ID: request.id}
    if error:
        carried[ERROR] = error
    await client.publish(headers[REPLY_TO], payload, headers=carried, id=f"reply:{request.id}")


def responder(
    client: Client, handler: Callable[[Event[Any]], Awaitable[Any]]
) -> Callable[[Event[Any]], Awaitable[Any]]:
    """A consumer's handler that answers with what `handler` returns, or with its error. Other events it ignores."""

    async def respond(event: Event[Any]) -> None:
        try:
            answer, code = await handler(event), ""
        except Exception as error:
            answer, code = str(error), getattr(error, "code", None) or type(error).__name__
        if REPLY_TO in event.headers:
            await reply(client, event, answer, code)

    return respond
