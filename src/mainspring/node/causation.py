"""One causation tree over all parts: what is no message of the kernel is noted next to its messages.

A stored event, a run and a signal of a beat become nodes of the tree under ids of their own. What they lead to names
them as its cause: events carry it in their headers, messages in their metadata. The tree knows what passed lately; the
headers of an event are in the log as long as the event is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from mainspring.beats import DeclaredInlet, Taken, TopicInlet
from mainspring.builtin import BusPort
from mainspring.bus import Bus
from mainspring.codec import Encoding
from mainspring.durations import Duration
from mainspring.kernel import CausationNode, Kernel
from mainspring.log import Log, Prepared
from mainspring.node.declarations import PublishedVersions
from mainspring.runs import Runtime, UnknownRun
from mainspring.runs.durable import entry_key
from mainspring.telemetry import (
    CAUSATION,
    CORRELATION,
    TRACEPARENT,
    OpenSpan,
    Recorder,
    causation_headers,
    current_correlation,
    messaging,
    with_causation,
)


class Envelope(msgspec.Struct):
    """What is stored of an event, as far as handling it needs it."""

    id: str
    payload: msgspec.Raw
    headers: dict[str, str] | None = None


decode_envelope: Callable[[bytes], Envelope] = msgspec.json.Decoder(Envelope).decode


def begin_delivery(
    recorder: Recorder, envelope: Envelope, topic: str, group: str, partition: int, offset: int, attempt: int
) -> OpenSpan:
    """The span of one delivery: it continues the publisher's trace, and is linked to it."""
    headers = envelope.headers or {}
    attributes = messaging(
        "process",
        "process",
        topic,
        message_id=envelope.id,
        conversation=headers.get(CORRELATION),
        group=group,
        partition=str(partition),
        offset=offset,
        attempt=attempt,
    )
    links = [headers[TRACEPARENT]] if TRACEPARENT in headers else []
    return recorder.begin(f"process {topic}", "CONSUMER", attributes, parent=headers, links=links)


def note_event(kernel: Kernel, topic: str, id: str, ts: int, headers: Mapping[str, str] | None) -> None:
    """Add a stored event, below what its headers name as its cause."""
    known = headers or {}
    kernel.note("event", topic, id, causation=known.get(CAUSATION), correlation=known.get(CORRELATION), at_ms=ts)


class RunTraces:
    """Adds the effects of runs to a tree, from their journals; so a run can be traced after a restart, too."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.durable.store

    async def __call__(self, id: str, tree: list[CausationNode]) -> list[CausationNode]:
        if not tree:
            tree = await self._alone(id)
        known = {node.id for node in tree}
        whole: list[CausationNode] = []
        for node in tree:
            whole.append(node)
            if node.kind == "run":
                whole += [effect for effect in await self._effects(node) if effect.id not in known]
        return whole

    async def _alone(self, run_id: str) -> list[CausationNode]:
        try:
            record = await self._store.record(run_id)
        except UnknownRun:
            return []
        cause = record.parent or record.causation
        return [CausationNode(run_id, "run", record.program, record.created, 0, cause, record.correlation)]

    async def _effects(self, run: CausationNode) -> list[CausationNode]:
        journal = await self._store.journal(run.id)
        return [
            CausationNode(entry_key(run.id, index), "effect", entry.effect, entry.at, run.depth + 1, run.id)
            for index, entry in enumerate(journal)
        ]


class TracedPort(BusPort):
    """The bus as runs see it; what a run publishes is noted below the run."""

    def __init__(self, bus: Bus, kernel: Kernel, versions: PublishedVersions, encoding: Encoding | None = None) -> None:
        super().__init__(bus, encoding)
        self._kernel = kernel
        self._spoken = versions

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
        headers = {**causation_headers(id.rpartition("#")[0], current_correlation()), **(headers or {})}
        versions = self._spoken.headers(topic, headers)
        prepared = super().prepare(topic, payload, key=key, headers=versions, id=id, ttl=ttl)
        note_event(self._kernel, topic, id, self._kernel.clock.wall_ms(), headers)
        return prepared

    async def publish(
        self, topic: str, payload: bytes, *, key: str | None, headers: Mapping[str, str] | None, ttl: Duration = 0
    ) -> str:
        headers = with_causation(headers)
        versions = self._spoken.headers(topic, headers)
        id = await super().publish(topic, payload, key=key, headers=versions, ttl=ttl)
        note_event(self._kernel, topic, id, self._kernel.clock.wall_ms(), headers)
        return id


class TracedInlet(TopicInlet):
    """A topic that feeds beats, and notes which event became which signal."""

    def __init__(self, log: Log, declared: DeclaredInlet, kernel: Kernel) -> None:
        super().__init__(log, declared.topic, target=declared.target)
        self._kernel = kernel

    def settle(self, taken: Taken) -> None:
        super().settle(taken)
        for path, text in taken.events.items():
            event = msgspec.json.decode(text)
            note_event(self._kernel, self.topic, event["id"], event["ts"], event.get("headers"))
            self._kernel.note("beat", "signal", path, causation=event["id"], at_ms=event["ts"])
