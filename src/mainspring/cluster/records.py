"""What nodes write about themselves: leases, pulses and roles.

A **lease** (space `leases`, key `node/<name>`) is written once by its node and only ever deleted; its version is the
node's epoch. A **pulse** (space `nodes`, key `<name>`) is rewritten a few times per lease: whoever follows the log
hears from it that the node lives, and finds in it what people and other nodes want to know. A **role** (space `leases`,
key `role/<name>`) says which epoch has it.

Nodes of different versions live side by side. So a member that is not known here is passed over, one that is missing
has a default, and nothing is ever taken away from these records without a new `format` that older nodes can refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

LEASES: Final = "leases"
NODES: Final = "nodes"
FORMAT: Final = 1  # of the records that nodes share; a pulse tells it to the others
EVERYTHING: Final = (1 << 53) - 1  # an offset above all others
NO_VERSION: Final = (1 << 53) - 1  # that no record ever has: a guard on it never holds


def lease_key(node: str) -> str:
    return f"node/{node}"


def role_key(role: str) -> str:
    return f"role/{role}"


def inbox(node: str) -> str:
    """The topic of what other nodes ask of this one. The bus knows no name with `|`, so no client gets at it."""
    return f"system.node|{node}"


class Lease(msgspec.Struct, frozen=True):
    """Proof that a node of this name is there. `instance` tells one life of a node from the next."""

    node: str
    instance: str
    lease_ms: int
    home: str = ""  # what only one process at a time can own; the next owner need not wait until the lease is over
    format: int = FORMAT


class Pulse(msgspec.Struct, frozen=True):
    """A node about itself, as of its last heartbeat."""

    name: str
    epoch: int
    beat: int = 0  # how many there were
    address: str = ""
    started: int = 0  # epoch ms by the node's own clock; for people
    version: str = ""  # of the software
    format: int = FORMAT
    serves: tuple[str, ...] = ()  # `kind:Type` of what its program handles
    program: str = ""  # digest of what its program declares
    able: tuple[str, ...] = ()  # roles that its program has something for


class Holder(msgspec.Struct, frozen=True):
    """Who has a role."""

    node: str
    epoch: int


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_lease: Callable[[bytes], Lease] = msgspec.json.Decoder(Lease).decode
decode_pulse: Callable[[bytes], Pulse] = msgspec.json.Decoder(Pulse).decode
decode_holder: Callable[[bytes], Holder] = msgspec.json.Decoder(Holder).decode
