"""What a program declares, and what its functions are given.

- `app`: `App` with its decorators
- `declared`: what decorators leave behind, as plain data
- `event`: what a consumer gets
- `dependencies`: what a handler takes besides, made for each call
- `middleware`: functions around every call of a handler
- `verbs`: what a program can do where it is served: publish, ask, start runs

Tasks are declared here and are `mainspring.tasks`
"""

from __future__ import annotations

from mainspring.app.app import App
from mainspring.app.declared import (
    DeclaredConsumer,
    DeclaredPages,
    DeclaredSchedule,
    DeclaredSchema,
    DeclaredTopic,
    place_of,
    refuse_shared_groups,
)
from mainspring.app.dependencies import Depends
from mainspring.app.event import BlockingEvent, Event, NoConnection, TransactionEvent
from mainspring.app.middleware import HandlerCall, Next

__all__ = [
    "App",
    "BlockingEvent",
    "DeclaredConsumer",
    "DeclaredPages",
    "DeclaredSchedule",
    "DeclaredSchema",
    "DeclaredTopic",
    "Depends",
    "Event",
    "HandlerCall",
    "Next",
    "NoConnection",
    "TransactionEvent",
    "place_of",
    "refuse_shared_groups",
]
