"""What a program says about payloads: schemas it registers, steps that raise old events to today's shape.

Both are noted when they are declared and take effect when the node boots, before anything is consumed. A schema that
breaks what its topic promises fails the boot, with the differences: better then than with the first event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mainspring.app.declared import DeclaredConsumer
from mainspring.bus import BadSchema, Bus, Compatibility
from mainspring.bus.schema_validator import schema_of


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

    async def install(self, bus: Bus, consumers: Iterable[DeclaredConsumer]) -> None:
        """Make it known to a bus that has started. What consumers expect is only shown, and nobody is held to it."""
        for step in self.upcasters:
            bus.upcaster(step.topic, step.version, step.step)
        for declared in self.schemas:
            await bus.register_schema(declared.topic, declared.given, compatibility=declared.compatibility)
        for consumer in consumers:
            try:
                bus.schemas.expected[consumer.topic] = {} if consumer.payload is Any else schema_of(consumer.payload)
            except BadSchema:
                bus.schemas.expected[consumer.topic] = {}  # a type without a schema: all that is known is the topic
