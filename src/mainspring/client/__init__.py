"""Clients of a node: async and blocking. Everything stands on the wire protocol.

- `client`: `connect` and `Client`; `verbs`: those that a program has inside its node, too
- `sync_client`: the same verbs for programs without an event loop
- `subscription`: events of a topic for a group; `consumer`: a function called with each of them
- `publishing`: events on their way, kept until the node confirmed them
- `request_reply`: asking over topics
- `conversation`: what is said to a node and what the answers mean, without a socket; `frames`: its bytes
- `connection`: opened, kept and opened again, with its spans; `websocket`: its socket
- `http`: the node's HTTP side for `Client`; `sync_http`: for code that waits, with the standard library alone
- `errors`: what can go wrong

Names are imported when they are first used: a command that asks one question does not pay for an async client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.client.client import Client as Client
    from mainspring.client.client import HistoryRange as HistoryRange
    from mainspring.client.client import connect as connect
    from mainspring.client.connection import Options as Options
    from mainspring.client.consumer import Consumer as Consumer
    from mainspring.client.consumer import Stall as Stall
    from mainspring.client.consumer import describe as describe
    from mainspring.client.errors import AlreadySubscribed as AlreadySubscribed
    from mainspring.client.errors import BadArgument as BadArgument
    from mainspring.client.errors import BadPayload as BadPayload
    from mainspring.client.errors import CannotConnect as CannotConnect
    from mainspring.client.errors import ClientError as ClientError
    from mainspring.client.errors import Closed as Closed
    from mainspring.client.errors import EventTooLarge as EventTooLarge
    from mainspring.client.errors import NodeRefused as NodeRefused
    from mainspring.client.errors import NotEncodable as NotEncodable
    from mainspring.client.errors import TimedOut as TimedOut
    from mainspring.client.errors import Uncertain as Uncertain
    from mainspring.client.frames import EventEnvelope as EventEnvelope
    from mainspring.client.frames import check_texts as check_texts
    from mainspring.client.frames import decode_envelope as decode_envelope
    from mainspring.client.frames import encode_event as encode_event
    from mainspring.client.frames import moment_ms as moment_ms
    from mainspring.client.http import NodeHttp as NodeHttp
    from mainspring.client.publishing import Awaited as Awaited
    from mainspring.client.publishing import New as New
    from mainspring.client.publishing import Outgoing as Outgoing
    from mainspring.client.publishing import Place as Place
    from mainspring.client.request_reply import ReplyError as ReplyError
    from mainspring.client.subscription import DeadEvent as DeadEvent
    from mainspring.client.subscription import Event as Event
    from mainspring.client.subscription import StoredEvent as StoredEvent
    from mainspring.client.subscription import Subscription as Subscription
    from mainspring.client.subscription import decoder as decoder
    from mainspring.client.sync_client import SyncClient as SyncClient
    from mainspring.client.sync_client import Waiter as Waiter
    from mainspring.client.sync_http import NDJSON as NDJSON
    from mainspring.client.sync_http import PATIENCE_S as PATIENCE_S
    from mainspring.client.sync_http import NodeConnection as NodeConnection
    from mainspring.client.sync_http import path as path
    from mainspring.client.verbs import NodeVerbs as NodeVerbs
    from mainspring.client.verbs import RunInfo as RunInfo
    from mainspring.client.verbs import StartedRun as StartedRun
    from mainspring.client.verbs import run_name as run_name

_HOMES: Final = {
    "mainspring.client.client": "Client HistoryRange connect",
    "mainspring.client.connection": "Options",
    "mainspring.client.consumer": "Consumer Stall describe",
    "mainspring.client.errors": "AlreadySubscribed BadArgument BadPayload CannotConnect ClientError Closed "
    "EventTooLarge NodeRefused NotEncodable TimedOut Uncertain",
    "mainspring.client.frames": "EventEnvelope check_texts decode_envelope encode_event moment_ms",
    "mainspring.client.http": "NodeHttp",
    "mainspring.client.publishing": "Awaited New Outgoing Place",
    "mainspring.client.request_reply": "ReplyError",
    "mainspring.client.subscription": "DeadEvent Event StoredEvent Subscription decoder",
    "mainspring.client.sync_client": "SyncClient Waiter",
    "mainspring.client.sync_http": "NDJSON NodeConnection PATIENCE_S path",
    "mainspring.client.verbs": "NodeVerbs RunInfo StartedRun run_name",
}
__getattr__ = lazy_imports(globals(), _HOMES)
