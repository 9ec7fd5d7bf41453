"""The kernel: messages, capabilities, routing, supervised actors and timers, without a socket."""

from __future__ import annotations

from mainspring.kernel.actors import Actor, BufferedActor, ErrorEvent, MessageEvent
from mainspring.kernel.blobs import Blob, BlobPointer, BlobUnavailable, read_blob
from mainspring.kernel.capability import Capability, Handler, RestartPolicy, handler_from
from mainspring.kernel.context import Context
from mainspring.kernel.errors import BadOutput, CapabilityError, Fail, NotConfigured, WaitsForItself
from mainspring.kernel.kernel import DEFAULT_TIMEOUT_MS, PHASES, Kernel
from mainspring.kernel.lineage import Node, causation_tree, drawn
from mainspring.kernel.mail import Mail, Origin

__all__ = [
    "DEFAULT_TIMEOUT_MS",
    "PHASES",
    "Actor",
    "BadOutput",
    "Blob",
    "BlobPointer",
    "BlobUnavailable",
    "BufferedActor",
    "Capability",
    "CapabilityError",
    "Context",
    "ErrorEvent",
    "Fail",
    "Handler",
    "Kernel",
    "Mail",
    "MessageEvent",
    "Node",
    "NotConfigured",
    "Origin",
    "RestartPolicy",
    "WaitsForItself",
    "causation_tree",
    "drawn",
    "handler_from",
    "read_blob",
]
