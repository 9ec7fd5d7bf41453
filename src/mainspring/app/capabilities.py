"""From declared handlers to capabilities: those that share the first segment of their type share one actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.app.declared import Declared
from mainspring.kernel import Capability, CapabilityError

if TYPE_CHECKING:
    from mainspring.app.app import App


def joined(app: App, reserved: set[str] | frozenset[str]) -> list[Capability]:
    """Everything the app declares, in the order it was first mentioned. `reserved` ids belong to the node."""
    segments: dict[str, list[Declared]] = {}
    for declared in app.handlers:
        segments.setdefault(declared.handler.type.partition(".")[0], []).append(declared)
    for capability in app.low_level:
        if capability.id in reserved:
            raise CapabilityError(f"capability {capability.id!r} is built in", remedy="choose another id")
    found = [_join(app, name, declared, reserved) for name, declared in segments.items()]
    return sorted([*found, *app.low_level], key=lambda capability: _position(app, capability))


def _position(app: App, capability: Capability) -> int:
    name = capability.id.removeprefix(f"{app.name}.")
    return app.order.index(capability.id if capability.id in app.order else name)


def _join(app: App, name: str, declared: list[Declared], reserved: set[str] | frozenset[str]) -> Capability:
    handlers = [each.handler for each in declared]
    answers = [handler for handler in handlers if handler.kind != "event"]
    taken = name in reserved or any(capability.id == name for capability in app.low_level)
    if taken and answers:
        raise CapabilityError(
            f"{answers[0].kind} {answers[0].type}: the first segment {name!r} belongs to another capability",
            remedy="use a first segment of your own",
        )
    return Capability(
        id=f"{app.name}.{name}" if taken else name,
        description=f"Handlers of {name} in {app.name}.",
        subscribes=list(dict.fromkeys(handler.type for handler in handlers if handler.kind == "event")),
        handlers=handlers,
        durable=bool(_agreed(name, "durable", [each.durable for each in declared])),
        isolation=_agreed(name, "isolation", [each.isolation for each in declared]) or "task",
        memory_mb=_agreed(name, "memory_mb", [each.memory_mb for each in declared]),
        restart=app.restart,
    )


def _agreed(name: str, what: str, said: list[Any]) -> Any:
    """What the handlers of one capability say about it; they share an actor, so they must not disagree."""
    told = {value for value in said if value is not None}
    if len(told) > 1:
        raise CapabilityError(
            f"the handlers of {name!r} disagree about {what}", remedy="they share one actor: say it once"
        )
    return told.pop() if told else None
