"""The event bus: durable topics, groups, leases, dead letters, replay.

bus             `Bus`, the face: connections, publishing, reading, and the tables of everything below
session         one connection: its frames, its answers in order, its subscriptions
protocol        the frames of clients and nodes
publishing/     accept, then submit: from a request to its durable acknowledgement
topics/         settings, tails, retention, compaction
groups/         members that share a topic's events; leases, positions, dead letters
schemas/        what payloads look like
schedules/      events that are published later, and again and again
access/         who may publish and subscribe; tokens
results         what callers get: plain data that HTTP encodes as it is
errors          what the bus refuses, each with the code of the protocol
names           what may name a topic, a group or a schedule
counters        numbers since the node started
audit           `system.bus.audit`: what the bus decided
"""

from __future__ import annotations

from mainspring.bus.access import Access, Action, Caller, Checker, Who, origin_of
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
from mainspring.bus.publishing.admission import key_hash, partition_of
from mainspring.bus.results import (
    DeadLetter,
    DeadLetterFilter,
    GroupInfo,
    GroupOffsets,
    NewEvent,
    PartitionOffsets,
    Published,
    ReadyState,
    Stats,
)
from mainspring.bus.schedules import LEAST_EVERY_MS, Schedule
from mainspring.bus.schemas import SCHEMA_HEADER, Compatibility, SchemaCheck, SchemaVersion
from mainspring.bus.session import Session
from mainspring.bus.topics import AccessList, TopicChange, TopicConfig, encode_topic, parse_topic

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
    "DeadLetterFilter",
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
