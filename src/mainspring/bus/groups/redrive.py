"""Sends dead letters back to the topic they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import MAX_ID
from mainspring.bus.publishing.admission import refusal
from mainspring.bus.publishing.tickets import FutureTicket
from mainspring.bus.results import DeadLetter, NewEvent, Published
from mainspring.errors import MainspringError
from mainspring.log import Batch

if TYPE_CHECKING:
    from mainspring.bus.bus import Bus
    from mainspring.bus.publishing.publisher import Publisher

PAGE = 100
REMEMBERED_MS = 3_600_000  # far longer than a redrive that has read a letter takes to send it


async def redrive(bus: Bus, publisher: Publisher, topic: str, offsets: Sequence[int] | None) -> list[Published]:
    """All dead letters of `topic` that are there now, or those at `offsets`; where they are now."""
    if offsets is not None:
        letters = [await bus.dead_letter(topic, offset) for offset in offsets]
        return [await _send_back(bus, publisher, topic, letter) for letter in letters]
    sent: list[Published] = []
    start = 1
    while letters := await bus.dead_letters(topic, offset=start, limit=PAGE):
        sent += [await _send_back(bus, publisher, topic, letter) for letter in letters]
        start = letters[-1].offset + 1
    return sent


async def _send_back(bus: Bus, publisher: Publisher, topic: str, letter: DeadLetter) -> Published:
    target = bus.topics.open(topic)
    append = bus.new_append(target, NewEvent(bytes(letter.payload), letter.key, letter.headers))
    # Two redrives may have read the same letter; the second one finds that it was sent. The mark is longer than any
    # id of a client, so that nobody can take a letter away by publishing under its mark.
    letter_id = f"{topic}{DEAD_LETTERS}/{letter.partition}/{letter.offset}".rjust(MAX_ID + 1, "/")
    append = msgspec.structs.replace(append, dedupe=letter_id, dedupe_until=append.ts + REMEMBERED_MS)
    batch = Batch()
    batch.append(append)
    batch.remove(topic + DEAD_LETTERS, letter.partition, offsets=(letter.offset,))
    ticket = FutureTicket()
    publisher.submit(batch, (target,), ticket)
    try:
        ((partition, offset, _),) = await ticket.placed
    except MainspringError as error:
        raise refusal(error) from error
    return Published(topic, partition, offset, append.id, append.ts)
