"""The event bus: durable topics, groups, leases, dead letters, replay."""

from __future__ import annotations

from mainspring.bus.access.access import Access, Action, Caller, Checker, Who, origin_of
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
from mainspring.bus.protocol import BEGINNING, LATEST, EventId, Start, envelope
from mainspring.bus.publishing.partitioning import key_hash, partition_of
from mainspring.bus.results import (
    DeadLetter,
    GroupInfo,
    GroupOffsets,
    NewEvent,
    PartitionOffsets,
    Published,
    ReadyState,
    Stats,
)
from mainspring.bus.schedules.schedules import LEAST_EVERY_MS, Schedule
from mainspring.bus.schemas.registry import HEADER as SCHEMA_HEADER
from mainspring.bus.schemas.registry import Compatibility, SchemaCheck, SchemaVersion
from mainspring.bus.session import Session
from mainspring.bus.topics.config import AccessList, TopicChange, TopicConfig, encode_topic, parse_topic

__all__ = [
    "BEGINNING",
    "LATEST",
    "LEAST_EVERY_MS",
    "SCHEMA_HEADER",
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
    "EventId",
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
    "ReadyState",
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
