"""What a program says about payloads: schemas it registers, steps that raise old events to today's shape.

Both are noted when they are declared and take effect when the node boots, before anything is consumed. A schema that
breaks what its topic promises fails the boot, with the differences: better then than with the first event.

While a newer program runs on other nodes, the latest version of a schema may be one that this program does not know. So
what this program publishes is held to the version that it registered itself, and says so (`Spoken`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mainspring.app.declared import DeclaredConsumer
from mainspring.bus import SCHEMA_HEADER, BadSchema, Bus, Compatibility, Conflict
from mainspring.bus.schemas import schema_of

_TRIES: Final = 20  # several nodes with one new program may start at once, and register the same
_AGAIN_S: Final = 0.1


class Spoken:
    """The versions of schemas in which one node's program publishes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._versions: dict[str, int] = {}

    def learn(self, topic: str, version: int) -> None:
        """The program's schema of this topic is that version."""
        self._versions[topic] = version

    def headers(self, topic: str, headers: Mapping[str, str] | None) -> dict[str, str] | None:
        """The headers of an event that the program publishes: they name its version where that is not the latest."""
        version = self._versions.get(topic)
        if version is not None and version != self._bus.schemas.get(topic).version:
            return {SCHEMA_HEADER: str(version), **(headers or {})}
        return None if headers is None else dict(headers)


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """A JSON Schema or a Python type for the payloads of a topic."""

    topic: str
    given: Any
    compatibility: Compatibility | None = None


@dataclass(frozen=True, slots=True)
class DeclaredUpcaster:
    """A function from a payload of `version` to one of the next."""

    topic: str
    version: int
    step: Callable[[Any], Any]


@dataclass
class DeclaredSchemas:
    """Everything one program says about payloads."""

    schemas: list[DeclaredSchema] = field(default_factory=list)
    upcasters: list[DeclaredUpcaster] = field(default_factory=list)

    async def install(self, bus: Bus, consumers: Iterable[DeclaredConsumer], spoken: Spoken) -> None:
        """Make it known to a bus that has started. What consumers expect is only shown, and nobody is held to it."""
        for step in self.upcasters:
            bus.topics.add_upcaster(step.topic, step.version, step.step)
        for declared in self.schemas:
            spoken.learn(declared.topic, await _register(bus, declared))
        for consumer in consumers:
            try:
                bus.schemas.expected[consumer.topic] = {} if consumer.payload is Any else schema_of(consumer.payload)
            except BadSchema:
                bus.schemas.expected[consumer.topic] = {}  # a type without a schema: all that is known is the topic


async def _register(bus: Bus, declared: DeclaredSchema) -> int:
    """The version that a schema has then. What another node registers at the same moment is looked at again."""
    tries = 1
    while True:
        try:
            told, _ = await bus.register_schema(declared.topic, declared.given, compatibility=declared.compatibility)
            return told.version
        except Conflict:
            if tries == _TRIES:
                raise
            tries += 1
            await asyncio.sleep(_AGAIN_S)
