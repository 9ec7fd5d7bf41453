"""The event bus: durable topics, groups, leases, dead letters, replay.

bus             `Bus`, the face: connections, publishing, reading, and the tables of everything below
session         one connection: its frames, its answers in order, its subscriptions
protocol        the frames of clients and nodes
publishing/     accept, then submit: from a request to its durable acknowledgement
topics/         settings, tails, retention, compaction
groups/         members that share a topic's events; leases, positions, dead letters
schemas/        what payloads look like
schedules/      events that are published later, and again and again
task_calls      the tasks of programs, and what became of their calls
access/         who may publish and subscribe; tokens
results         what callers get: plain data that HTTP encodes as it is
errors          what the bus refuses, each with the code of the protocol
names           what may name a topic, a group or a schedule
counters        numbers since the node started
audit           `system.bus.audit`: what the bus decided
disk            room where the log is: warning early, refusing publishes before there is none
"""

from mainspring.bus.access import Access as Access
from mainspring.bus.access import Action as Action
from mainspring.bus.access import Caller as Caller
from mainspring.bus.access import Checker as Checker
from mainspring.bus.access import Who as Who
from mainspring.bus.access import origin_of as origin_of
from mainspring.bus.audit import Audit as Audit
from mainspring.bus.bus import RECORD_READERS as RECORD_READERS
from mainspring.bus.bus import Bus as Bus
from mainspring.bus.errors import BadFrame as BadFrame
from mainspring.bus.errors import BadJson as BadJson
from mainspring.bus.errors import BadOffset as BadOffset
from mainspring.bus.errors import BadSchema as BadSchema
from mainspring.bus.errors import BusError as BusError
from mainspring.bus.errors import Conflict as Conflict
from mainspring.bus.errors import ExpectationFailed as ExpectationFailed
from mainspring.bus.errors import Forbidden as Forbidden
from mainspring.bus.errors import LimitReached as LimitReached
from mainspring.bus.errors import NotSubscribed as NotSubscribed
from mainspring.bus.errors import RateLimited as RateLimited
from mainspring.bus.errors import SchemaIncompatible as SchemaIncompatible
from mainspring.bus.errors import SchemaMismatch as SchemaMismatch
from mainspring.bus.errors import TooLarge as TooLarge
from mainspring.bus.errors import Unavailable as Unavailable
from mainspring.bus.errors import UnknownCall as UnknownCall
from mainspring.bus.errors import UnknownEvent as UnknownEvent
from mainspring.bus.errors import UnknownGroup as UnknownGroup
from mainspring.bus.errors import UnknownSchedule as UnknownSchedule
from mainspring.bus.errors import UnknownSchema as UnknownSchema
from mainspring.bus.errors import UnknownTask as UnknownTask
from mainspring.bus.errors import UnknownTopic as UnknownTopic
from mainspring.bus.errors import UnknownType as UnknownType
from mainspring.bus.names import NAME_SHAPE as NAME_SHAPE
from mainspring.bus.names import SYSTEM as SYSTEM
from mainspring.bus.names import Name as Name
from mainspring.bus.names import check_name as check_name
from mainspring.bus.protocol import BEGINNING as BEGINNING
from mainspring.bus.protocol import LATEST as LATEST
from mainspring.bus.protocol import EventId as EventId
from mainspring.bus.protocol import Overlap as Overlap
from mainspring.bus.protocol import Start as Start
from mainspring.bus.protocol import envelope as envelope
from mainspring.bus.publishing.admission import key_hash as key_hash
from mainspring.bus.publishing.admission import partition_of as partition_of
from mainspring.bus.publishing.admission import sha256_headers as sha256_headers
from mainspring.bus.quotas import UNLIMITED as UNLIMITED
from mainspring.bus.quotas import Quota as Quota
from mainspring.bus.quotas import Quotas as Quotas
from mainspring.bus.results import DeadLetter as DeadLetter
from mainspring.bus.results import DeadLetterFilter as DeadLetterFilter
from mainspring.bus.results import DiskState as DiskState
from mainspring.bus.results import GroupInfo as GroupInfo
from mainspring.bus.results import GroupOffsets as GroupOffsets
from mainspring.bus.results import NewEvent as NewEvent
from mainspring.bus.results import PartitionOffsets as PartitionOffsets
from mainspring.bus.results import Published as Published
from mainspring.bus.results import ReadyState as ReadyState
from mainspring.bus.results import Stats as Stats
from mainspring.bus.schedules import DECLARED as DECLARED
from mainspring.bus.schedules import LEAST_EVERY_MS as LEAST_EVERY_MS
from mainspring.bus.schedules import MOST_EVERY_MS as MOST_EVERY_MS
from mainspring.bus.schedules import LastCall as LastCall
from mainspring.bus.schedules import Schedule as Schedule
from mainspring.bus.schedules import ScheduleInfo as ScheduleInfo
from mainspring.bus.schemas import SCHEMA_HEADER as SCHEMA_HEADER
from mainspring.bus.schemas import Compatibility as Compatibility
from mainspring.bus.schemas import SchemaCheck as SchemaCheck
from mainspring.bus.schemas import SchemaVersion as SchemaVersion
from mainspring.bus.session import Session as Session
from mainspring.bus.task_calls import CallFilter as CallFilter
from mainspring.bus.task_calls import CallState as CallState
from mainspring.bus.task_calls import ChangedCalls as ChangedCalls
from mainspring.bus.task_calls import TaskCall as TaskCall
from mainspring.bus.task_calls import TaskCallPage as TaskCallPage
from mainspring.bus.task_calls import TaskCalls as TaskCalls
from mainspring.bus.task_calls import TaskInfo as TaskInfo
from mainspring.bus.topics import AccessList as AccessList
from mainspring.bus.topics import Entry as Entry
from mainspring.bus.topics import TopicChange as TopicChange
from mainspring.bus.topics import TopicConfig as TopicConfig
from mainspring.bus.topics import encode_topic as encode_topic
from mainspring.bus.topics import parse_topic as parse_topic
from mainspring.lazy_imports import offer

offer(globals())
