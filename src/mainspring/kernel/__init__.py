"""The kernel: messages, capabilities, routing, supervised actors and timers, without a socket.

- `kernel`: boot, ask, drain, stop: the class that everybody else uses
- `exchange`: the turns of every message: routing, the pending table, timeouts
- `mail`: one message on its way to one actor, and where its answer goes
- `capability`, `contracts`: what a program declares, and the checked contracts that the kernel routes by
- `context`: what a handler may do besides returning
- `actors`: mailboxes, and the actors that run handlers
- `supervisor`, `workers`: the slots that own actors and replace them: declared and low-level ones
- `timers`: messages that are sent later, or again
- `blobs`: data too large for a line
- `remote`: requests to other nodes
- `errors`: `Fail` and the kernel's own errors
- `inspect`: what a running kernel is doing, and what caused what
- `durable/`: what survives the node: commands, timers, dead messages, the trace
- `processes/`: actors in processes of their own
"""

from __future__ import annotations

from mainspring.errors import Fail
from mainspring.kernel.actors import Actor, BufferedActor, ErrorEvent, MessageEvent
from mainspring.kernel.blobs import Blob, BlobPointer, BlobUnavailable, read_blob
from mainspring.kernel.capability import Capability, Handler, Isolation, RestartPolicy, handler_from
from mainspring.kernel.context import BlockingContext, Context
from mainspring.kernel.contracts import Contract
from mainspring.kernel.durable.dead_messages import MOST as MOST_DEAD_MESSAGES
from mainspring.kernel.durable.dead_messages import DeadMessage
from mainspring.kernel.durable.record import SPACE as COMMANDS
from mainspring.kernel.durable.record import read_command
from mainspring.kernel.errors import BadOutput, CapabilityError, NotConfigured, WaitsForItself, refusal
from mainspring.kernel.inspect import (
    ActorView,
    CausationNode,
    FaultView,
    HeaderView,
    Inspector,
    RequestView,
    causation_tree,
    draw_tree,
)
from mainspring.kernel.kernel import DEFAULT_TIMEOUT_MS, PHASES, Kernel
from mainspring.kernel.mail import Mail, Origin
from mainspring.message import Retry

__all__ = [
    "COMMANDS",
    "DEFAULT_TIMEOUT_MS",
    "MOST_DEAD_MESSAGES",
    "PHASES",
    "Actor",
    "ActorView",
    "BadOutput",
    "Blob",
    "BlobPointer",
    "BlobUnavailable",
    "BlockingContext",
    "BufferedActor",
    "Capability",
    "CapabilityError",
    "CausationNode",
    "Context",
    "Contract",
    "DeadMessage",
    "ErrorEvent",
    "Fail",
    "FaultView",
    "Handler",
    "HeaderView",
    "Inspector",
    "Isolation",
    "Kernel",
    "Mail",
    "MessageEvent",
    "NotConfigured",
    "Origin",
    "RequestView",
    "RestartPolicy",
    "Retry",
    "WaitsForItself",
    "causation_tree",
    "draw_tree",
    "handler_from",
    "read_blob",
    "read_command",
    "refusal",
]
