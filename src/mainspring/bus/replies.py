"""The answers of one connection, in the order of its requests.

Requests that wait for the log take a place in a queue; an answer leaves when everything before it has left. That is why
a client needs no `corr` to match answers to requests, and why a subscription can begin to deliver in the moment its OK
leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mainspring.bus.protocol import NOTHING, error_frame, published_frame, with_corr
from mainspring.bus.publishing.admission import Accepted, refusal
from mainspring.bus.publishing.publisher import Placed
from mainspring.errors import MainspringError

_to_json = msgspec.json.Encoder().encode

MOST: Final = 8_192  # requests without an answer before a connection is not read from
MOST_BYTES: Final = 8 << 20


class Answer:
    """A place in the queue. `sent` runs when the answer leaves."""

    __slots__ = ("frame", "sent")

    def __init__(self, frame: bytes | None = None) -> None:
        self.frame: bytes | None = frame
        self.sent: Callable[[], None] | None = None


class Replies:
    """The queue. `waiting_bytes` are those of requests that were read and not answered."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._queue: deque[Answer] = deque()
        self._publishes = 0
        self._quiet = asyncio.Event()
        self._relief = asyncio.Event()
        self._closed = False
        self.waiting_frames = 0
        self.waiting_bytes: int = 0

    def reply(self, frame: bytes) -> None:
        """An answer that is known at once."""
        if self._queue:
            self._queue.append(Answer(frame))
        else:
            self._send(frame)

    def place(self) -> Answer:
        """Keep a place for an answer that comes later: fill in its `frame`, then `flush`."""
        answer = Answer()
        self._queue.append(answer)
        return answer

    def publishing(self, accepted: Accepted, corr: msgspec.Raw, about: str, size: int) -> PublishAnswer:
        """The same for events on their way to the log."""
        answer = PublishAnswer(self, accepted, corr, about, size)
        self._queue.append(answer)
        self._publishes += 1
        self.waiting_bytes += size
        return answer

    def published(self, answer: PublishAnswer) -> None:
        self._publishes -= 1
        self.waiting_bytes -= answer.size
        if not self._publishes:
            self._quiet.set()
        if self._queue and self._queue[0] is answer:
            self.flush()

    def flush(self) -> None:
        """Send what is answered, as far as everything before it is."""
        queue = self._queue
        while queue and (frame := queue[0].frame) is not None:
            answer = queue.popleft()
            self._send(frame)
            if answer.sent is not None:
                answer.sent()
        if not self.congested:
            self._relief.set()

    async def nothing_published(self) -> None:
        """Wait until every event published so far is answered."""
        while self._publishes and not self._closed:
            self._quiet.clear()
            await self._quiet.wait()

    @property
    def congested(self) -> bool:
        return len(self._queue) + self.waiting_frames > MOST or self.waiting_bytes > MOST_BYTES

    async def relieved(self) -> None:
        while self.congested and not self._closed:
            self._relief.clear()
            await self._relief.wait()

    def close(self) -> None:
        """Nobody is there to be answered."""
        self._closed = True
        self._queue.clear()
        self._quiet.set()
        self._relief.set()


class PublishAnswer(Answer):
    """The answer of a PUBLISH or PUBLISH_BATCH, and the ticket that fills it in."""

    __slots__ = ("_about", "_accepted", "_corr", "_replies", "size")

    def __init__(self, replies: Replies, accepted: Accepted, corr: msgspec.Raw, about: str, size: int) -> None:
        super().__init__()
        self._replies = replies
        self._accepted = accepted
        self._corr = corr
        self._about = about
        self.size: int = size

    def stored(self, placed: Sequence[Placed]) -> None:
        accepted = self._accepted
        topic = accepted.topic.json
        if self._about == "PUBLISH":
            partition, offset, duplicate = placed[0]
            append = accepted.appends[0]
            frame = published_frame(topic, partition, offset, append.id, append.ts)
            if duplicate:
                frame = frame[:-1] + b',"duplicate":true}'
            elif accepted.due_at(0):
                frame = b'%b,"not_before":%d}' % (frame[:-1], accepted.due_at(0))
        else:
            places = _to_json([(partition, offset) for partition, offset, _ in placed])
            frame = b'{"type":"PUBLISHED_BATCH","topic":%b,"offsets":%b}' % (topic, places)
        self.frame: bytes = with_corr(frame, self._corr) if self._corr is not NOTHING else frame
        self._replies.published(self)

    def failed(self, error: MainspringError) -> None:
        frame = error_frame(refusal(error), self._about, self._accepted.topic.name)
        self.frame = with_corr(frame, self._corr)
        self._replies.published(self)
