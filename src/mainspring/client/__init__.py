"""Clients of the bus: async, blocking, and a task queue. Everything stands on the wire protocol."""

from __future__ import annotations

from mainspring.client.client import Client
from mainspring.client.connecting import connect
from mainspring.client.connection import Options
from mainspring.client.consumer import Consumer
from mainspring.client.errors import (
    AlreadySubscribed,
    BadArgument,
    BadPayload,
    CannotConnect,
    ClientError,
    Closed,
    EventTooLarge,
    NodeRefused,
    NotEncodable,
    TimedOut,
    Uncertain,
)
from mainspring.client.event import Event, StoredEvent
from mainspring.client.placing import New, Place
from mainspring.client.request_reply import ReplyError
from mainspring.client.stall import Stall
from mainspring.client.subscription import Subscription
from mainspring.client.sync_client import SyncClient

__all__ = [
    "AlreadySubscribed",
    "BadArgument",
    "BadPayload",
    "CannotConnect",
    "Client",
    "ClientError",
    "Closed",
    "Consumer",
    "Event",
    "EventTooLarge",
    "New",
    "NodeRefused",
    "NotEncodable",
    "Options",
    "Place",
    "ReplyError",
    "Stall",
    "StoredEvent",
    "Subscription",
    "SyncClient",
    "TimedOut",
    "Uncertain",
    "connect",
]
