"""The event bus: durable topics, groups, leases, dead letters, replay."""

from __future__ import annotations

from mainspring.bus.answers import (
    DeadLetter,
    GroupInfo,
    GroupOffsets,
    NewEvent,
    PartitionOffsets,
    Published,
    Readiness,
    Stats,
)
from mainspring.bus.bus import Bus
from mainspring.bus.errors import (
    BadFrame,
    BadJson,
    BadOffset,
    BusError,
    Conflict,
    ExpectationFailed,
    Forbidden,
    NotSubscribed,
    RateLimited,
    TooLarge,
    Unavailable,
    UnknownEvent,
    UnknownGroup,
    UnknownSchedule,
    UnknownTopic,
    UnknownType,
)
from mainspring.bus.frames import envelope
from mainspring.bus.partition import key_hash, partition_of
from mainspring.bus.schedules import Schedule
from mainspring.bus.session import Session
from mainspring.bus.start import BEGINNING, LATEST, Start
from mainspring.bus.topics import AccessList, TopicChange, TopicConfig, encode_topic, parse_topic

__all__ = [
    "BEGINNING",
    "LATEST",
    "AccessList",
    "BadFrame",
    "BadJson",
    "BadOffset",
    "Bus",
    "BusError",
    "Conflict",
    "DeadLetter",
    "ExpectationFailed",
    "Forbidden",
    "GroupInfo",
    "GroupOffsets",
    "NewEvent",
    "NotSubscribed",
    "PartitionOffsets",
    "Published",
    "RateLimited",
    "Readiness",
    "Schedule",
    "Session",
    "Start",
    "Stats",
    "TooLarge",
    "TopicChange",
    "TopicConfig",
    "Unavailable",
    "UnknownEvent",
    "UnknownGroup",
    "UnknownSchedule",
    "UnknownTopic",
    "UnknownType",
    "encode_topic",
    "envelope",
    "key_hash",
    "parse_topic",
    "partition_of",
]
