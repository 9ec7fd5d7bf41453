"""The event bus: durable topics, groups, leases, dead letters, replay."""

from __future__ import annotations

from mainspring.bus.access import Access, Action, Caller, Checker, Who, origin_of
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
    BadSchema,
    BusError,
    Conflict,
    ExpectationFailed,
    Forbidden,
    LimitReached,
    NotSubscribed,
    RateLimited,
    SchemaIncompatible,
    SchemaMismatch,
    TooLarge,
    Unavailable,
    UnknownEvent,
    UnknownGroup,
    UnknownSchedule,
    UnknownSchema,
    UnknownTopic,
    UnknownType,
)
from mainspring.bus.frames import envelope
from mainspring.bus.partition import key_hash, partition_of
from mainspring.bus.schedules import Schedule
from mainspring.bus.schemas import Compatibility, SchemaCheck, SchemaVersion
from mainspring.bus.session import Session
from mainspring.bus.start import BEGINNING, LATEST, Start
from mainspring.bus.topics import AccessList, TopicChange, TopicConfig, encode_topic, parse_topic

__all__ = [
    "BEGINNING",
    "LATEST",
    "Access",
    "AccessList",
    "Action",
    "BadFrame",
    "BadJson",
    "BadOffset",
    "BadSchema",
    "Bus",
    "BusError",
    "Caller",
    "Checker",
    "Compatibility",
    "Conflict",
    "DeadLetter",
    "ExpectationFailed",
    "Forbidden",
    "GroupInfo",
    "GroupOffsets",
    "LimitReached",
    "NewEvent",
    "NotSubscribed",
    "PartitionOffsets",
    "Published",
    "RateLimited",
    "Readiness",
    "Schedule",
    "SchemaCheck",
    "SchemaIncompatible",
    "SchemaMismatch",
    "SchemaVersion",
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
    "UnknownSchema",
    "UnknownTopic",
    "UnknownType",
    "Who",
    "encode_topic",
    "envelope",
    "key_hash",
    "origin_of",
    "parse_topic",
    "partition_of",
]
