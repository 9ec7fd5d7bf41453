"""`mainspring mcp`: a node's messages as tools of the Model Context Protocol, over standard input and output.

JSON-RPC 2.0, one message a line. The node is asked over a connection of its own each time, so that this server, which
an editor or an agent started, lives through restarts of the node. What a handler refuses is an answer with `isError`,
for the model to read; what is wrong with the call itself is a JSON-RPC error.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.program.kernel import listed
from mainspring.cli.support.messages import TIMEOUT_MS, Wire, WireOptions
from mainspring.cli.support.output import SpeaksJsonOption
from mainspring.errors import MainspringError
from mainspring.json_text import JsonRefused, read_value


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

    def listed(self) -> dict[str, Any]:
        """As the protocol lists it."""
        return {
            "name": self.name,
            "title": self.type,
            "description": self.description,
            "inputSchema": self.schema,
            "annotations": {"readOnlyHint": self.kind == "query"},
        }


def tool_from(type: str, described: dict[str, Any]) -> Tool:
    """A tool for language models from what `Syscall.Describe` says about a type.

    A tool's name may not have a dot, so `Order.Place` is `Order_Place`. Its arguments are an object; a message whose
    data is something else takes it under `data`.
    """
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


VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")  # of the protocol, the newest first
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603


class RpcError(Exception):
    """Code and message of what goes into the member `error` of an answer."""


class Server:
    """Answers one request after the other. `connect` gives a new connection to the node."""

    def __init__(self, connect: Callable[[], Wire], *, read_only: bool = False, only: tuple[str, ...] = ()) -> None:
        self._connect = connect
        self._read_only = read_only
        self._only = only

    def answer(self, line: str) -> str | None:
        """The answer to one line; None for notifications."""
        try:
            given = read_value(line, "the line")
        except JsonRefused:
            answer: Any = _failure(None, PARSE_ERROR, "this is not JSON")
        else:
            if isinstance(given, list):
                answer = [answer for each in given if (answer := self._one(each)) is not None]
            else:
                answer = self._one(given)
        return json.dumps(answer, separators=(",", ":")) if answer else None  # ASCII, whatever the terminal's encoding

    def _one(self, request: Any) -> dict[str, Any] | None:
        if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or "method" not in request:
            if isinstance(request, dict) and ("result" in request or "error" in request):
                return None  # an answer; this server asks nothing
            return _failure(None, INVALID_REQUEST, "this is no JSON-RPC 2.0 request")
        ident = request.get("id")
        try:
            result = self._call(request["method"], request.get("params") or {})
            answer = {"jsonrpc": "2.0", "id": ident, "result": result}
        except RpcError as error:
            answer = _failure(ident, *error.args)
        except MainspringError as error:
            answer = _failure(ident, INTERNAL_ERROR, str(error))
        return answer if "id" in request else None

    def _call(self, method: Any, params: Any) -> dict[str, Any]:
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "params is an object")
        if method == "initialize":
            asked = params.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "mainspring", "version": version("mainspring")},
                "instructions": "Each tool is a message type of a Mainspring node; Syscall_Describe explains a type.",
            }
        if method == "ping" or (isinstance(method, str) and method.startswith("notifications/")):
            return {}
        if method == "tools/list":
            with self._connect() as wire:
                return {"tools": [tool.listed() for tool in self._tools(wire)]}
        if method == "tools/call":
            return self._call_tool(params)
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")

    def _tools(self, wire: Wire) -> Iterator[Tool]:
        for entry in listed(wire):
            if not self._offers(entry["type"], entry["kind"]):
                continue
            described = wire.ask("query", "Syscall.Describe", {"name": entry["type"]})
            if described["kind"] == "reply":
                yield tool_from(entry["type"], described["data"])

    def _offers(self, type: str, kind: str) -> bool:
        if self._read_only and kind != "query":
            return False
        return not self._only or any(fnmatch.fnmatchcase(type, pattern) for pattern in self._only)

    def _call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "tools/call takes a name and an object of arguments")
        with self._connect() as wire:
            described = wire.ask("query", "Syscall.Describe", {"name": name.replace("_", ".", 1)})
            if described["kind"] != "reply" or not self._offers(described["data"]["name"], described["data"]["kind"]):
                raise RpcError(INVALID_PARAMS, f"there is no tool {name!r}")
            tool = tool_from(described["data"]["name"], described["data"])
            answer = wire.ask(tool.kind, tool.type, tool.data(arguments))
        failed, data = answer["kind"] == "error", answer["data"]
        text = json.dumps(data, ensure_ascii=False)
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": failed}
        if isinstance(data, dict) and not failed:
            result["structuredContent"] = data
        return result


def _failure(ident: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": message}}


def mcp(
    *,
    node: WireOptions,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer queries only.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Offer types like this, e.g. 'Order.*'; may be repeated."),
    ] = None,
    timeout_ms: Annotated[
        int, typer.Option(min=1, metavar="MS", help="How long to wait for an answer of the node, in milliseconds.")
    ] = TIMEOUT_MS,
    as_json: SpeaksJsonOption = True,
) -> None:
    """Offer a node's messages to a language model. A Model Context Protocol server on standard input and output.

    Example: `mcp --only 'Order.*' --read-only`.
    """
    del as_json
    server = Server(lambda: node.open(timeout_ms), read_only=read_only, only=tuple(only or ()))
    for given in sys.stdin.buffer:
        line = given.decode(errors="replace")
        if line.strip() and (answer := server.answer(line)) is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
