"""AsyncAPI 3: what can be published to a node and what comes from it, as a document for programs.

It is made when it is asked for, from what the node knows then: a channel per topic, a message per version of its
schema, and two operations, seen from the node as AsyncAPI wants it: it receives what clients publish and sends what
they subscribe to. A topic without a schema carries what the program's own consumers expect, or any JSON.

References within a registered schema are relative to that schema; inside a larger document they would lead nowhere, so
they are moved to where the schema stands. Names of topics may hold what keys of AsyncAPI may not; keys are made from
them and stay apart, the name itself is the channel's address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from mainspring.bus import SCHEMA_HEADER, Bus, SchemaVersion

ASYNCAPI: Final = "3.0.0"
_DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_FORMATS: Final = {
    "https://json-schema.org/draft/2020-12/schema": "application/schema+json;version=2020-12",
    "https://json-schema.org/draft/2019-09/schema": "application/schema+json;version=2019-09",
    "http://json-schema.org/draft-07/schema": "application/schema+json;version=draft-07",
    "http://json-schema.org/draft-06/schema": "application/schema+json;version=draft-06",
    "http://json-schema.org/draft-04/schema": "application/schema+json;version=draft-04",
}
_NODE_ONLY: Final = "system.bus."
_VALUES: Final = frozenset(("enum", "const", "default", "examples"))  # data, not schemas
_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9.\-]")


def topics_of(bus: Bus) -> set[str]:
    """Every topic a document could speak of: those there are, and those with a schema or a consumer that waits."""
    return (
        {config.topic for config in bus.topics.configs()}
        | {each.topic for each in bus.schemas.all()}
        | {*bus.schemas.expected}
    )


def asyncapi_document(
    bus: Bus, topics: Iterable[str], host: str, version: str, *, secure: bool, has_tokens: bool
) -> dict[str, Any]:
    """The whole document, ready to be encoded. It speaks of these topics and of no other."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for topic in sorted(topics):
        known = bus.schemas.of(topic)
        versions = known.versions if known is not None else []
        keys = _add_versions(topic, versions, messages, schemas)
        if not keys:
            keys = [f"{_key(topic)}.any"]
            expected = bus.schemas.expected.get(topic)
            messages[keys[0]] = _message(topic, topic, _placed(keys[0], expected, schemas) if expected else {})
        key = _key(topic)
        channels[key] = {
            "address": topic,
            "description": f"Events of the topic {topic}.",
            "messages": {each: {"$ref": f"#/components/messages/{each}"} for each in keys},
        }
        operations |= _operations(topic, key, keys)
    server: dict[str, Any] = {
        "host": host,
        "pathname": "/",
        "protocol": "wss" if secure else "ws",
        "description": "JSON text frames; see the bus protocol.",
    }
    components: dict[str, Any] = {"messages": messages, "schemas": schemas}
    if has_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        server["security"] = [{"$ref": "#/components/securitySchemes/token"}]
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Mainspring",
            "version": version,
            "description": "Topics of this node. Every payload is JSON and travels in a frame of the bus protocol.",
        },
        "defaultContentType": "application/json",
        "servers": {"node": server},
        "channels": channels,
        "operations": operations,
        "components": components,
    }


def _add_versions(
    topic: str, versions: Iterable[SchemaVersion], messages: dict[str, Any], schemas: dict[str, Any]
) -> list[str]:
    """A message per version; gives their keys, the latest version first."""
    keys: list[str] = []
    for version in versions:
        key = f"{_key(topic)}.v{version.version}"
        message = _message(topic, f"{topic}, version {version.version}", _placed(key, version.schema, schemas))
        header = {SCHEMA_HEADER: {"type": "string", "const": str(version.version)}}
        messages[key] = {**message, "headers": {"type": "object", "properties": header}}
        keys.insert(0, key)
    return keys


def _message(topic: str, title: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"name": topic, "title": title, "contentType": "application/json", "payload": payload}


def _placed(key: str, schema: dict[str, Any] | bool, schemas: dict[str, Any]) -> dict[str, Any]:
    """Put the schema among the components; gives the reference to it."""
    schemas[key] = {
        "schemaFormat": _format(schema),
        "schema": _moved(schema, f"#/components/schemas/{key}/schema"),
    }
    return {"$ref": f"#/components/schemas/{key}"}


def _operations(topic: str, key: str, keys: list[str]) -> dict[str, Any]:
    def operation(action: str, summary: str) -> dict[str, Any]:
        carried = [{"$ref": f"#/channels/{key}/messages/{each}"} for each in keys]
        return {"action": action, "channel": {"$ref": f"#/channels/{key}"}, "summary": summary, "messages": carried}

    sent = {f"subscribe.{key}": operation("send", f"Events of {topic}, delivered to subscribers.")}
    if topic.startswith(_NODE_ONLY):
        return sent
    return sent | {f"publish.{key}": operation("receive", f"Events published to {topic}.")}


def _key(topic: str) -> str:
    """The name in characters that keys may have. `_` begins what was replaced, so no two topics share a key."""
    return _OUTSIDE.sub(lambda found: f"_{ord(found[0]):x}_", topic)


def _format(schema: dict[str, Any] | bool) -> str:
    dialect = schema.get("$schema", _DEFAULT_DIALECT) if isinstance(schema, dict) else _DEFAULT_DIALECT
    return _FORMATS.get(str(dialect).rstrip("#"), _FORMATS[_DEFAULT_DIALECT])


def _moved(schema: Any, place: str) -> Any:
    """The schema with its inner references leading to where it stands now."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: each if name in _VALUES else _moved(each, place) for name, each in schema.items()}
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#"):
        moved["$ref"] = place + ref[1:]
    return moved
