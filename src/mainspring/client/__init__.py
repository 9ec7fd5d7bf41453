"""Clients of a node: async and blocking. Everything stands on the wire protocol.

- `client`: `connect` and `Client`, the verbs
- `sync_client`: the same verbs for programs without an event loop
- `subscription`: events of a topic for a group; `consumer`: a function called with each of them
- `publishing`: events on their way, kept until the node confirmed them
- `request_reply`: asking over topics
- `conversation`: what is said to a node and what the answers mean, without a socket; `frames`: its bytes
- `connection`: opened, kept and opened again; `websocket`: its socket
- `http`: the node's HTTP side for `Client`; `sync_http`: for code that waits, with the standard library alone
- `telemetry`: spans around publishing and consuming
- `errors`: what can go wrong

Names are imported when they are first used: a command that asks one question does not pay for an async client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.client.client import Client as Client
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
    from mainspring.client.frames import encode_event as encode_event
    from mainspring.client.publishing import New as New
    from mainspring.client.publishing import Outgoing as Outgoing
    from mainspring.client.publishing import Place as Place
    from mainspring.client.request_reply import ReplyError as ReplyError
    from mainspring.client.subscription import Event as Event
    from mainspring.client.subscription import StoredEvent as StoredEvent
    from mainspring.client.subscription import Subscription as Subscription
    from mainspring.client.subscription import decoder as decoder
    from mainspring.client.sync_client import SyncClient as SyncClient
    from mainspring.client.sync_http import NDJSON as NDJSON
    from mainspring.client.sync_http import PATIENCE_S as PATIENCE_S
    from mainspring.client.sync_http import NodeConnection as NodeConnection
    from mainspring.client.sync_http import path as path

_HOMES: Final = {
    "AlreadySubscribed": "mainspring.client.errors",
    "BadArgument": "mainspring.client.errors",
    "BadPayload": "mainspring.client.errors",
    "CannotConnect": "mainspring.client.errors",
    "Client": "mainspring.client.client",
    "ClientError": "mainspring.client.errors",
    "Closed": "mainspring.client.errors",
    "Consumer": "mainspring.client.consumer",
    "Event": "mainspring.client.subscription",
    "EventEnvelope": "mainspring.client.frames",
    "EventTooLarge": "mainspring.client.errors",
    "NDJSON": "mainspring.client.sync_http",
    "New": "mainspring.client.publishing",
    "NodeConnection": "mainspring.client.sync_http",
    "NodeRefused": "mainspring.client.errors",
    "NotEncodable": "mainspring.client.errors",
    "Options": "mainspring.client.connection",
    "Outgoing": "mainspring.client.publishing",
    "PATIENCE_S": "mainspring.client.sync_http",
    "Place": "mainspring.client.publishing",
    "ReplyError": "mainspring.client.request_reply",
    "Stall": "mainspring.client.consumer",
    "StoredEvent": "mainspring.client.subscription",
    "Subscription": "mainspring.client.subscription",
    "SyncClient": "mainspring.client.sync_client",
    "TimedOut": "mainspring.client.errors",
    "Uncertain": "mainspring.client.errors",
    "check_texts": "mainspring.client.frames",
    "connect": "mainspring.client.client",
    "decoder": "mainspring.client.subscription",
    "describe": "mainspring.client.consumer",
    "encode_event": "mainspring.client.frames",
    "path": "mainspring.client.sync_http",
}
__getattr__ = lazy_imports(globals(), _HOMES)

__all__ = [
    "NDJSON",
    "PATIENCE_S",
    "AlreadySubscribed",
    "BadArgument",
    "BadPayload",
    "CannotConnect",
    "Client",
    "ClientError",
    "Closed",
    "Consumer",
    "Event",
    "EventEnvelope",
    "EventTooLarge",
    "New",
    "NodeConnection",
    "NodeRefused",
    "NotEncodable",
    "Options",
    "Outgoing",
    "Place",
    "ReplyError",
    "Stall",
    "StoredEvent",
    "Subscription",
    "SyncClient",
    "TimedOut",
    "Uncertain",
    "check_texts",
    "connect",
    "decoder",
    "describe",
    "encode_event",
    "path",
]
