"""Counting what a log holds: for people, and for deciding about retention."""

from __future__ import annotations

import msgspec

from mainspring.log.contract import Bounds, DamagedRecord, Engine, Progress, silent


class TopicSurvey(msgspec.Struct):
    topic: str
    events: int
    bytes: int
    partitions: list[Bounds]


class SpaceSurvey(msgspec.Struct):
    space: str
    records: int = 0
    bytes: int = 0
    damaged: int = 0


class Survey(msgspec.Struct):
    """`marks` are the remembered dedupe texts."""

    engine: str
    topics: list[TopicSurvey]
    spaces: list[SpaceSurvey]
    marks: int


async def survey(engine: Engine, progress: Progress = silent) -> Survey:
    """Events are counted by the engine as they come and go; records are counted here, one by one."""
    topics = []
    for topic in await engine.topics():
        bounds = await engine.bounds(topic)
        topics.append(TopicSurvey(topic, sum(b.events for b in bounds), sum(b.bytes for b in bounds), bounds))
        progress("topics", len(topics), 0)
    spaces = [await _space(engine, space, progress) for space in await engine.spaces()]
    marks = 0
    async for _ in engine.marks():
        marks += 1
    return Survey(engine.name, topics, spaces, marks)


async def _space(engine: Engine, space: str, progress: Progress) -> SpaceSurvey:
    found = SpaceSurvey(space)
    after = ""
    while True:
        try:
            async for record in engine.scan(space, after=after):
                after = record.key
                found.records += 1
                found.bytes += len(record.key.encode()) + len(record.value)
                if found.records % 1000 == 0:
                    progress(f"records of {space}", found.records, 0)
            return found
        except DamagedRecord as damage:
            found.damaged += 1
            after = damage.key
