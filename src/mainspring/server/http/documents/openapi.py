"""The OpenAPI 3.1 document, made from the same table that routes the requests.

Bodies are described by the very types that decode and encode them (msgspec writes their JSON Schema), paths and methods
by the operations. So the document says what the node does, not what somebody remembered to write down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mainspring.server.http.problem import PROBLEM_TYPE, ProblemDocument
from mainspring.server.http.table import BodyContent, Operation, Parameter, Schema

_REF: Final = "#/components/schemas/{name}"
_TAGS: Final = {
    "topics": "Topics: what they are called, how many partitions they have, where they begin and end.",
    "events": "Publishing and reading events.",
    "groups": "Groups of competing consumers: where they stand, and how to move them.",
    "dead letters": "Events that a group gave up on, and how to send them again.",
    "schedules": "Events to be published later, once or again and again.",
    "tasks": "Tasks of the program and their calls.",
    "messages": "Commands and queries for the kernel, and the messages that passed lately.",
    "schemas": "What the payloads of a topic look like, version by version.",
    "node": "How the node is doing.",
    "status": "What needs a person, and figures over time.",
}


def build_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The whole document, ready to be encoded."""
    described = [content for operation in operations for content in operation.contents]
    used = {model for content in described for model in content.models}
    models = sorted(used | {ProblemDocument}, key=lambda model: model.__name__)
    refs, found = msgspec.json.schema_components(models, ref_template=_REF)
    components = {name: _plain(schema) for name, schema in found.items()}
    ref_of = dict(zip(models, refs, strict=True))
    for content in described:
        for model in content.models if content.rule else ():
            components[model.__name__] |= content.rule
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _describe(operation, ref_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": version,
            "summary": "Durable topics over HTTP, on the same port as the WebSocket.",
            "description": "Errors are `application/problem+json` with a stable `code`, a `message` and a `remedy`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token made by `mainspring token new`. A node without tokens asks for none.",
                }
            },
        },
        "security": [{"token": []}, {}],
    }


def _describe(operation: Operation, ref_of: dict[type, Schema]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(each) for each in operation.all_parameters],
        "responses": _responses(operation, ref_of),
    }
    if operation.body:
        described["requestBody"] = _request_body(operation, ref_of)
    return described


def _request_body(operation: Operation, ref_of: dict[type, Schema]) -> dict[str, Any]:
    """Generated clients have one type for a body, so CloudEvents, which have libraries of their own, are told aside."""
    others = [content for content in operation.body if content.media_type.startswith("application/cloudevents")]
    plain = [content for content in operation.body if content not in others]
    body: dict[str, Any] = {"required": operation.body_required, "content": _content(plain, ref_of)}
    if others:
        body["description"] = f"Also {' and '.join(f'`{each.media_type}`' for each in others)}, or binary mode."
        body["x-cloudevents"] = _content(others, ref_of)
    return body


def _plain(schema: Any) -> Any:
    """The schema as generators take it: a tuple is an array of its length, and integers need more than 32 bits."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _plain(value) for name, value in schema.items()}
    if "prefixItems" in plain:
        pieces = plain.pop("prefixItems")
        alike = all(each == pieces[0] for each in pieces)
        plain |= {"items": pieces[0] if alike else {"anyOf": pieces}, "minItems": len(pieces), "maxItems": len(pieces)}
    if plain.get("type") == "integer":
        plain["format"] = "int64"
    return plain


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": _plain(parameter.schema),
    }


def _responses(operation: Operation, ref_of: dict[type, Schema]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for answer in operation.answers:
        described: dict[str, Any] = {"description": answer.description}
        if answer.contents:
            described["content"] = _content(answer.contents, ref_of)
        answers[str(answer.status)] = described
    for status in operation.refusals:
        if str(status) not in answers:
            answers[str(status)] = {
                "description": HTTPStatus(status).phrase,
                "content": {PROBLEM_TYPE: {"schema": ref_of[ProblemDocument]}},
            }
    return answers


def _content(contents: Iterable[BodyContent], ref_of: dict[type, Schema]) -> dict[str, Any]:
    return {content.media_type: {"schema": _schema(content, ref_of)} for content in contents}


def _schema(content: BodyContent, ref_of: dict[type, Schema]) -> Schema:
    if isinstance(content.model, dict):
        return content.model
    refs = [ref_of[model] for model in content.models]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}
