"""What clients do to calls of tasks, to groups that nobody needs any more, and to timers that outlive their node.

A part of the scenario in `promises`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from mainspring import App, Fail
from mainspring.client import Client, NodeRefused, TimedOut
from mainspring.tasks import TaskCancelled, TaskFailed, TaskHandle
from mainspring.testing.simulation import PlannedStep, Rest, operation
from tests.simulated.system.topics import TopicVerbs
from tests.simulated.system.verbs import LOOK_S, rotten_offsets

PATIENCE_S = 120


class CallVerbs(TopicVerbs):
    def __init__(self) -> None:
        super().__init__()
        self.apps: dict[int, App] = {}  # of clients, to enqueue tasks with
        self.repaired: set[str] = set()  # parcels that can be packed from now on
        self.calls: dict[tuple[str, str], str] = {}  # task and id: what a client was told became of it
        self.untold: set[str] = set()  # calls whose end their client was not told, or that the node did not know
        self.unheard: set[tuple[str, str]] = set()  # topics and new groups that were not given the first event
        self.kept_groups: set[str] = set()  # that could not be deleted
        self.reminders: set[str] = set()  # that a client was told will come
        self.silenced: set[str] = set()  # and that will not

    def declare_verbs(self, app: App) -> None:
        super().declare_verbs(app)

        @app.task(max_attempts=1)
        async def pack(parcel: str) -> str:
            if parcel not in self.repaired:
                raise ValueError("there is no string")
            return parcel

        @app.task
        async def ship(parcel: str) -> str:
            return parcel

        @app.command("Remind.Me", durable=True)
        async def remind(data: dict[str, Any], ctx: Any) -> None:
            await ctx.publish("reminded", {"id": data["id"]}, id=self._new_id())

        app.state.pack, app.state.ship = pack, ship

    def _app(self, client: Client, step: PlannedStep) -> App:
        if step.client not in self.apps:
            self.apps[step.client] = self.program()
            self.apps[step.client].use(client)
        return self.apps[step.client]

    # -- calls of tasks: tried again, discarded, cancelled

    async def _result(self, handle: TaskHandle[str]) -> str:
        """All faults are over long before this gives up: who waits must be told."""
        try:
            return await handle.result(timeout=PATIENCE_S)
        except TimedOut:
            self.untold.add(handle.id)
            raise

    @operation
    async def mend_call(self, client: Client, step: PlannedStep) -> None:
        handle = await self._app(client, step).state.pack.enqueue(step.id)
        try:
            await self._result(handle)
        except TaskFailed:
            pass
        else:
            raise AssertionError(f"parcel {step.id} was packed without string")
        self.repaired.add(step.id)
        if step.random.random() < 0.6:
            change, wanted = client.retry_calls, "done"
        else:
            change, wanted = client.discard_calls, "discarded"
        await self._change_call(client, lambda: change("pack", ids=[handle.id]))
        self.calls["pack", handle.id] = wanted

    async def _change_call(self, client: Client, change: Callable[[], Awaitable[int]]) -> None:
        tries = itertools.count()

        async def once() -> int:
            next(tries)
            return await change()

        try:
            changed = await self._insist(client, once)
        except NodeRefused as error:
            if error.code != "conflict" or next(tries) < 2:  # else the call has not failed any more: one before did it
                raise
        else:
            assert changed == 1, f"{changed} calls were changed"

    @operation
    async def cancel_call(self, client: Client, step: PlannedStep) -> None:
        ship = self._app(client, step).state.ship.options(delay=step.random.choice((0, 0.5, 5)))
        handle = await ship.enqueue(step.id)
        await asyncio.sleep(step.random.uniform(0, 1))
        try:
            await self._insist(client, lambda: client.cancel_calls("ship", ids=[handle.id], reason="not needed"))
        except NodeRefused as error:
            if error.code == "unknown_call":
                self.untold.add(handle.id)
            if error.code != "conflict":  # it is done already, or an answer was lost
                raise
        try:
            await self._result(handle)
        except TaskCancelled:
            self.calls["ship", handle.id] = "cancelled"
        else:
            self.calls["ship", handle.id] = "done"

    def _has_rotten_calls(self, end: Rest) -> bool:
        """A call whose event has rotted is not known, and never ends."""
        return any(topic.startswith("tasks.") for topic, _, _ in end.damaged)

    async def _calls_that_differ(self, end: Rest) -> dict[str, str]:
        """What became of calls, where a client was told something else."""
        if self._has_rotten_calls(end):
            return {}
        calls = end.nodes[0].bus.task_calls
        states = {(task, id): (await calls.call(task, id)).state for task, id in self.calls}
        return {f"call {id} of {task}": state for (task, id), state in states.items() if state != self.calls[task, id]}

    async def _check_calls(self, end: Rest) -> None:
        untold = set() if self._has_rotten_calls(end) else self.untold
        end.require(not untold, f"calls whose end their clients were never told: {sorted(untold)[:3]}")
        differ = await self._calls_that_differ(end)
        end.require(not differ, f"calls that are something else than their clients were told: {differ}")

    # -- groups that are deleted

    @operation
    async def delete_group(self, client: Client, step: PlannedStep) -> None:
        """Who comes back to a group that was deleted is new to it, and is given everything again."""
        topic, group = f"heard.{step.client}", f"g{step.id}"
        async with self.locks[topic]:
            if any(unheard == topic for unheard, _ in self.unheard):
                return  # its first event may have rotted, and then nobody is ever given it
            await client.publish(topic, {}, id=step.id)
            try:
                await self._read(client, topic, group)
                await self._leave(client, topic, group)
                await self._read(client, topic, group)
            finally:
                await self._leave(client, topic, group)  # or it would have a lag for ever

    async def _read(self, client: Client, topic: str, group: str) -> None:
        """As a member of a new group, until the first event has come."""
        subscription = client.subscribe(topic, group=group, from_="beginning")
        try:
            offset = 0
            while offset != 1:
                event = await subscription.get(timeout=PATIENCE_S)
                await event.ack()
                offset = event.offset
        except TimedOut:
            self.unheard.add((topic, group))
            raise
        finally:
            await subscription.close()

    async def _leave(self, client: Client, topic: str, group: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._delete(client, topic, group)
        except TimeoutError:
            self.kept_groups.add(group)
            raise

    async def _delete(self, client: Client, topic: str, group: str) -> None:
        while True:
            try:
                await self._insist(client, lambda: client.delete_group(topic, group))
            except NodeRefused as error:
                if error.code == "unknown_group":  # an answer that was lost
                    return
                if error.code != "conflict":  # the member that left may still be known
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _check_groups(self, end: Rest) -> None:
        missed = {group for topic, group in self.unheard if not rotten_offsets(end, topic)}
        end.require(not missed, f"new groups that were never given the first event: {sorted(missed)[:3]}")
        end.require(not self.kept_groups, f"groups that could not be deleted: {sorted(self.kept_groups)[:3]}")

    # -- timers that outlive their node

    @operation
    async def remind(self, client: Client, step: PlannedStep) -> None:
        message = {
            "kind": "command",
            "type": "Remind.Me",
            "data": {"id": step.id},
            "metadata": {"id": step.id, "timestamp": 0},
        }
        delay = step.random.choice((50, 500, 4_000))
        asked = {"delay": delay, "message": message, "durable": True}
        timer = (await client.command("Timer.Schedule", asked, timeout=10))["timerId"]
        if step.random.random() < 0.7:
            self.reminders.add(step.id)
            return
        try:
            answer = await client.command("Timer.Cancel", {"timerId": timer}, timeout=10)
        except Fail:
            return  # it may have been cancelled
        (self.silenced if answer["cancelled"] else self.reminders).add(step.id)

    async def _check_reminders(self, end: Rest) -> None:
        came = {event.payload["id"] for event in await end.events("reminded")}
        spoiled = came & self.silenced
        end.require(not spoiled, f"timers that were cancelled and fired: {sorted(spoiled)[:3]}")

    # -- all of it

    async def verbs_left(self, end: Rest) -> dict[str, Collection[Any]]:
        missing = self.reminders - {event.payload["id"] for event in await end.events("reminded")}
        rotten = len(rotten_offsets(end, "reminded"))
        differ = {} if end.damaged else await self._calls_that_differ(end)
        return {
            "reminders that did not come": missing if len(missing) > rotten else (),
            "calls that are something else than was told": [f"{call} is {state}" for call, state in differ.items()],
            **await super().verbs_left(end),
        }

    async def check_verbs(self, end: Rest) -> None:
        await super().check_verbs(end)
        await self._check_calls(end)
        await self._check_groups(end)
        await self._check_reminders(end)
