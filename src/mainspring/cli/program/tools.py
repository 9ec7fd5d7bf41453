"""What a node handles, as tools for language models: a name, a description, a JSON Schema of the arguments.

A tool's name may not have a dot, so `Order.Place` is `Order_Place`. Its arguments are an object; a message whose data
is something else takes it under `data`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Tool(msgspec.Struct, frozen=True):
    """One message type as a tool. `wrapped`: the data is the argument `data`, because it is no object."""

    name: str
    description: str
    kind: str
    type: str
    schema: dict[str, Any]
    wrapped: bool

    def data(self, arguments: dict[str, Any]) -> Any:
        """The message's data from a call's arguments."""
        return arguments.get("data") if self.wrapped else arguments

    def definition(self) -> dict[str, Any]:
        """As model APIs take it."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}


def tool_from(type: str, described: dict[str, Any]) -> Tool:
    """A tool from what `Syscall.Describe` says about a type."""
    schema = _resolved(described["input"])
    wrapped = schema.get("type") != "object"
    if wrapped:
        definitions = schema.pop("$defs", None)
        schema = {"type": "object", "properties": {"data": schema}, "required": ["data"]}
        if definitions:
            schema["$defs"] = definitions
    hint = "Changes nothing." if described["kind"] == "query" else ""
    description = " ".join(part for part in (described["description"].strip(), hint) if part)
    return Tool(type.replace(".", "_"), description, described["kind"], type, schema, wrapped)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its root spelled out: models are asked for an object, not for a reference to one."""
    root = dict(schema)
    own = root.pop("$ref", "").removeprefix("#/$defs/")
    if own:
        definitions = root.get("$defs", {})
        root = {**definitions[own], "$defs": definitions}
        if f"#/$defs/{own}".encode() not in msgspec.json.encode(root):  # it does not contain itself
            root["$defs"] = {name: each for name, each in definitions.items() if name != own}
    if not root.get("$defs"):
        root.pop("$defs", None)
    root.pop("title", None)
    return root
