"""Verbs about several events, or a whole topic: batches, letters for all groups, requests, purged and deleted topics.

A part of the scenario in `promises`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from mainspring import App, Event
from mainspring.client import Client, NodeRefused, ReplyError, TimedOut
from mainspring.errors import MainspringError
from mainspring.testing.simulation import PlannedStep, Rest, operation
from tests.simulated.system.runs import RunVerbs
from tests.simulated.system.verbs import rotten_offsets

NDJSON = "application/x-ndjson"
REPLY_S = 120
REDRIVEN = "x-redriven"


class Emptied:
    """What is known about a topic whose events are removed now and then."""

    def __init__(self) -> None:
        self.gone: set[str] = set()  # ids of events that were stored before it was emptied
        self.there: set[str] = set()  # and of those since then
        self.unsure = False  # whether somebody may have emptied it later than he said


class TopicVerbs(RunVerbs):
    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[str, int] = {}  # sizes
        self.confirmed_batches: set[str] = set()
        self.begun: set[tuple[Client, str]] = set()
        self.unanswered: set[str] = set()
        self.right: set[int] = set()  # offsets of `shared` that the second group was given
        self.emptied: defaultdict[str, Emptied] = defaultdict(Emptied)  # each client has topics of its own
        self.max_attempts: dict[str, int] = {}  # of these topics, as their clients were told

    def declare_verbs(self, app: App) -> None:
        super().declare_verbs(app)

        @app.consumer("shared", group="left", max_attempts=1)
        async def left(event: Event[Any]) -> None:
            if REDRIVEN not in event.headers:
                raise ValueError("only when it was sent again")
            event.publish("left", {"offset": event.offset}, id=self._new_id())

    def _once(self, client: Client, verb: str) -> bool:
        """Whether the client does this for the first time."""
        is_new = (client, verb) not in self.begun
        self.begun.add((client, verb))
        return is_new

    # -- batches: whole or not at all

    @operation(weight=2)
    async def publish_batch(self, client: Client, step: PlannedStep) -> None:
        size = self.batches[step.id] = step.random.randint(2, 9)
        events = [{"id": f"{step.id}.{n}", "payload": {"batch": step.id}} for n in range(size)]
        body = b"\n".join(map(msgspec.json.encode, events))
        sending = lambda: client.http.send("POST", "/topics/batches/events", body, NDJSON)  # noqa: E731
        await (self._insist(client, sending) if step.random.random() < 0.7 else sending())
        self.confirmed_batches.add(step.id)

    async def _check_batches(self, end: Rest) -> None:
        found = await end.events("batches")
        stored = Counter(event.payload["batch"] for event in found)
        for id, size in self.batches.items():
            wanted = {size} if id in self.confirmed_batches else {0, size}
            end.require(stored[id] in wanted, f"{stored[id]} of the {size} events of batch {id} are stored")
            offsets = [event.offset for event in found if event.payload["batch"] == id]
            in_a_row = not offsets or offsets[-1] - offsets[0] == len(offsets) - 1
            end.require(in_a_row, f"batch {id} lies at {offsets}")

    # -- letters that go to all groups

    async def _publish_shared(self, client: Client, id: str) -> None:
        async def right(event: Any) -> None:
            self.right.add(event.offset)

        if self._once(client, "read"):
            client.consume("shared", right, group="right", retry_delay=0.1, from_="beginning")
        await client.publish("shared", {}, id=id)

    @operation
    async def publish_shared(self, client: Client, step: PlannedStep) -> None:
        await self._publish_shared(client, step.id)

    @operation
    async def redrive_to_all(self, client: Client, step: PlannedStep) -> None:
        await self._publish_shared(client, step.id)
        await asyncio.sleep(step.random.uniform(0, 1))
        await client.redrive("shared", to_all=True)

    async def _check_shared(self, end: Rest) -> None:
        """A letter or its second event, never both and never neither; each group got each event.

        The one attempt at a second event may end with its node; then it is a letter again.
        """
        events, rotten = await end.events("shared"), rotten_offsets(end, "shared")
        given_up = await end.nodes[0].bus.dead_letters.page("shared")
        letters = Counter(each.original_offset for each in given_up if each.group == "left")
        again = Counter(event.id for event in events if REDRIVEN in event.headers)
        done = Counter(event.payload["offset"] for event in await end.events("left"))
        for event in events:
            if event.offset in rotten:
                continue
            if REDRIVEN in event.headers:
                found = done[event.offset], letters[event.offset]
                end.require(
                    sum(found) == 1, f"{event.id} was sent again, done {found[0]} times and is {found[1]} letters"
                )
            else:
                found = letters[event.offset], again[event.id]
                end.require(sum(found) == 1, f"{event.id} is {found[0]} letters and {found[1]} events that were sent")
            end.require(event.offset in self.right, f"the other group was never given {event.id}")

    # -- requests

    @operation(weight=2)
    async def request(self, client: Client, step: PlannedStep) -> None:
        async def answer(event: Any) -> Any:
            await asyncio.sleep(0.02)
            if event.payload["n"] % 3 == 0:
                raise ValueError(f"no answer to {event.payload['n']}")
            return event.payload["n"] + 1

        if self._once(client, "respond"):
            client.respond("questions", answer, group="answering", retry_delay=0.1, from_="beginning")
        try:
            found = await client.request("questions", {"n": step.number}, timeout=REPLY_S)
        except ReplyError as error:
            found = error.code
        except TimedOut:
            self.unanswered.add(step.id)
            return
        wanted = step.number + 1 if step.number % 3 else "ValueError"
        assert found == wanted, f"the answer to {step.number} was {found}"

    async def _check_requests(self, end: Rest) -> None:
        rotten = rotten_offsets(end, "questions") | rotten_offsets(end, "questions.replies")
        end.require(rotten or not self.unanswered, f"never answered: {sorted(self.unanswered)}")
        replies = Counter(event.headers["x-request-id"] for event in await end.events("questions.replies"))
        end.require(set(replies.values()) <= {1}, f"replies to one request: {replies.most_common(3)}")
        asked = {event.id for event in await end.events("questions")}
        end.require(rotten or replies.keys() == asked, f"without a reply: {sorted(asked - replies.keys())[:3]}")

    # -- topics that are emptied

    @operation
    async def purge_topic(self, client: Client, step: PlannedStep) -> None:
        topic = f"purged.{step.client}"
        await self._empty(topic, client, step, lambda: client.purge_topic(topic))
        async with self.locks[f"settings of {topic}"]:
            await self._change(topic, client, step.number + 1)

    async def _change(self, topic: str, client: Client, number: int) -> None:
        """Change a setting. One whose answer is lost may be changed later, and nothing is known of it from then on."""
        known = self.max_attempts.pop(topic, 0)
        try:
            await client.put_topic(topic, maxAttempts=number)
        except MainspringError:
            self.max_attempts[topic] = -1
            raise
        self.max_attempts[topic] = -1 if known < 0 else number

    @operation
    async def delete_topic(self, client: Client, step: PlannedStep) -> None:
        topic = f"deleted.{step.client}"
        await self._empty(topic, client, step, lambda: client.delete_topic(topic))

    async def _empty(self, topic: str, client: Client, step: PlannedStep, work: Callable[[], Awaitable[Any]]) -> None:
        """Publish, empty the topic, publish again; nobody publishes to it meanwhile."""
        known = self.emptied[topic]
        async with self.locks[topic]:
            for n in range(2):
                await client.publish(topic, {}, id=f"{step.id}.{n}")
                known.there.add(f"{step.id}.{n}")
            await self._empty_once(known, client, work)
            known.gone |= known.there
            known.there.clear()
            await client.publish(topic, {}, id=f"{step.id}.after")
            known.there.add(f"{step.id}.after")

    async def _empty_once(self, known: Emptied, client: Client, work: Callable[[], Awaitable[Any]]) -> None:
        attempts = itertools.count(1)

        async def counted() -> None:
            known.unsure |= next(attempts) > 1  # the one before may yet be done
            await work()

        try:
            await self._insist(client, counted)
        except NodeRefused as error:
            known.unsure = True
            if error.code != "unknown_topic":  # that is what the one before has done
                raise

    async def _check_emptied(self, end: Rest) -> None:
        for topic, known in self.emptied.items():
            stored = {event.id for event in await end.events(topic)}
            left = stored & known.gone
            end.require(not left, f"{topic} was emptied and holds {sorted(left)[:3]}")
            lost = known.there - stored if not (known.unsure or rotten_offsets(end, topic)) else set()
            end.require(not lost, f"{sorted(lost)[:3]} came after {topic} was emptied, and are gone")

    def _not_shown(self, end: Rest) -> list[str]:
        """Settings of topics that a node does not show as they are: one that was cut off has to catch up first."""
        differ = []
        for topic, number in self.max_attempts.items():
            for node in end.nodes if number > 0 else ():
                found = node.bus.topics.find(topic)
                shown = found and found.config.max_attempts
                if shown != number:
                    differ.append(f"{node.settings.node} shows {shown} attempts of {topic}, told {number}")
        return differ

    # -- all of it

    async def verbs_left(self, end: Rest) -> dict[str, Collection[Any]]:
        return {"settings that a node does not show": self._not_shown(end), **await super().verbs_left(end)}

    async def check_verbs(self, end: Rest) -> None:
        await super().check_verbs(end)
        await self._check_batches(end)
        await self._check_shared(end)
        await self._check_requests(end)
        await self._check_emptied(end)
