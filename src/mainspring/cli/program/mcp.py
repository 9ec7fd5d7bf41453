"""`mainspring mcp`: a node's messages as tools of the Model Context Protocol, over standard input and output or HTTP.

JSON-RPC 2.0. Each request has a thread and a connection to the node of its own, so that a long call keeps no other
waiting, and this server, which an editor or an agent started, lives through restarts of the node. What a handler
refuses is an answer with `isError`, for the model to read; what is wrong with the call itself is a JSON-RPC error.

Only what changes nothing is offered, unless the person who starts the server says otherwise. Topics, runs and the
descriptions of messages are resources.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from importlib.metadata import version
from typing import IO, Annotated, Any, Final
from urllib.parse import quote, unquote

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
NOT_FOUND: Final = -32002  # a resource

MAX_LINE_BYTES: Final = 4 << 20
_AT_A_TIME: Final = 32  # calls; more wait
_PROGRESS_S: Final = 1.0
_EVENTS: Final = 10  # of a topic that is read as a resource
_NEVER: Final = frozenset({"Event.Subscribe", "Event.Unsubscribe"})  # events are streamed on a connection of one's own
_ONLY_BY_NAME: Final = frozenset({"Syscall.Authenticate", "Syscall.Restart", "Syscall.Shutdown"})
_INSTRUCTIONS: Final = (
    "Each tool is a message type of a Mainspring node; Syscall_Describe explains a type. Resources are its topics "
    "(the newest events), its durable runs (their journals) and the descriptions of its messages."
)

Send = Callable[[Any], object]


class RpcError(Exception):
    """Code and message of what goes into the member `error` of an answer."""


class _OpenCall:
    """A request that is being answered, and how to give it up."""

    def __init__(self, connect: Callable[[], Wire]) -> None:
        self._connect = connect
        self._wire: Wire | None = None
        self._lock = threading.Lock()
        self.cancelled: bool = False
        self.done: threading.Event = threading.Event()

    def connect(self) -> Wire:
        """A connection to the node that ends when the call is cancelled."""
        wire = self._connect()
        with self._lock:
            self._wire = wire
            if self.cancelled:
                wire.abort()
        return wire

    def cancel(self) -> None:
        """Nobody waits for the answer any more. What the node has begun goes on there."""
        with self._lock:
            self.cancelled = True
            if self._wire is not None:
                self._wire.abort()


class Server:
    """Answers the requests of one client, side by side. `connect` gives a new connection to the node."""

    def __init__(self, connect: Callable[[], Wire], *, allow_changes: bool = False, only: tuple[str, ...] = ()) -> None:
        self._connect = connect
        self._allow_changes = allow_changes
        self._only = only
        self._open: dict[Any, _OpenCall] = {}
        self._threads = ThreadPoolExecutor(_AT_A_TIME, "mainspring-mcp")
        self._running: set[Any] = set()

    def take(self, line: bytes, send: Send) -> Future[None] | None:
        """Answer one line by `send`, at once or later from another thread; a notification not at all.

        Gives what is done when nothing more is sent; None: that is so now.
        """
        try:
            given = read_value(line.decode(errors="replace"), "the line")
        except (JsonRefused, RecursionError):
            send(_failure(None, PARSE_ERROR, "this is not JSON, or nested too deeply"))
            return None
        if isinstance(given, list) and given:
            return self._begin(partial(self._batch, given), send)
        if _is_slow(given):
            call = _OpenCall(self._connect)
            self._open[_key(given)] = call
            return self._begin(partial(self._one, given, send, call), send)
        _send_unless_none(send, self._one(given, send))
        return None

    def finish(self) -> None:
        """Wait until everything that was asked is answered."""
        wait(list(self._running))
        self._threads.shutdown()

    def _begin(self, work: Callable[[], Any], send: Send) -> Future[None]:
        future = self._threads.submit(lambda: _send_unless_none(send, work()))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _batch(self, requests: list[Any]) -> list[Any] | None:
        def drop(_: Any) -> None:
            """Of the calls in a batch no progress is reported."""

        return [answer for each in requests if (answer := self._one(each, drop)) is not None] or None

    def _one(self, request: Any, send: Send, call: _OpenCall | None = None) -> dict[str, Any] | None:
        if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or "method" not in request:
            if isinstance(request, dict) and ("result" in request or "error" in request):
                return None  # an answer; this server asks nothing
            return _failure(None, INVALID_REQUEST, "this is no JSON-RPC 2.0 request")
        ident = request.get("id")
        if not isinstance(ident, str | int | float | None):
            return _failure(None, INVALID_REQUEST, "an id is a text or a number")
        call = call or _OpenCall(self._connect)
        try:
            params = {} if request.get("params") is None else request["params"]
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "params is an object")
            _report_progress(params, send, call)
            answer = {"jsonrpc": "2.0", "id": ident, "result": self._call(request["method"], params, call)}
        except RpcError as error:
            answer = _failure(ident, *error.args)
        except MainspringError as error:
            answer = _failure(ident, INTERNAL_ERROR, str(error))
        except Exception as error:  # whatever a client sends, this server goes on
            answer = _failure(ident, INTERNAL_ERROR, f"{type(error).__name__}")
        finally:
            call.done.set()
            if self._open.get(_key(request)) is call:
                del self._open[_key(request)]
        return answer if "id" in request and not call.cancelled else None

    def _call(self, method: Any, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        if method == "initialize":
            return _hello(params)
        if method == "notifications/cancelled":
            found = self._open.get(_key({"id": params.get("requestId")}))
            if found is not None:
                found.cancel()
            return {}
        if method == "ping" or (isinstance(method, str) and method.startswith("notifications/")):
            return {}
        answer = _SLOW.get(method) if isinstance(method, str) else None
        if answer is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")
        return answer(self, params, call)

    # -- tools

    def _list_tools(self, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        with call.connect() as wire:
            return {"tools": [tool.listed() for tool in self._tools(wire)]}

    def _tools(self, wire: Wire) -> Iterator[Tool]:
        for entry in listed(wire):
            if not self._offers(entry["type"], entry["kind"]):
                continue
            described = wire.ask("query", "Syscall.Describe", {"name": entry["type"]})
            if described["kind"] == "reply":
                yield tool_from(entry["type"], described["data"])

    def _offers(self, type: str, kind: str) -> bool:
        named = any(fnmatch.fnmatchcase(type, pattern) for pattern in self._only)
        if type in _NEVER or (kind != "query" and not self._allow_changes):
            return False
        if type in _ONLY_BY_NAME:
            return type in self._only
        return named or not self._only

    def _call_tool(self, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "tools/call takes a name and an object of arguments")
        with call.connect() as wire:
            described = wire.ask("query", "Syscall.Describe", {"name": _encodable(name).replace("_", ".", 1)})
            if described["kind"] != "reply" or not self._offers(described["data"]["name"], described["data"]["kind"]):
                raise RpcError(INVALID_PARAMS, f"there is no tool {name!r}")
            tool = tool_from(described["data"]["name"], described["data"])
            answer = wire.ask(tool.kind, tool.type, _encodable(tool.data(arguments)))
        failed, data = answer["kind"] == "error", answer["data"]
        text = json.dumps(data, ensure_ascii=False)
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": failed}
        if isinstance(data, dict) and not failed:
            result["structuredContent"] = data
        return result

    # -- resources

    def _list_resources(self, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        with call.connect() as wire:
            found = [_resource("docs", "messages", "Every message type of the node, with its description.")]
            found += [
                _resource("topics", topic["topic"], f"The newest {_EVENTS} events of this topic.")
                for topic in self._asked(wire, "Bus.Topics", {}).get("topics", [])
            ]
            found += [
                _resource("runs", run["id"], f"A run of {run['program']}, {run['state']}: its journal.")
                for run in self._asked(wire, "Run.List", {}).get("runs", [])
            ]
        return {"resources": found}

    def _list_templates(self, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        shapes = {
            "topics/{topic}": "The newest events of a topic.",
            "runs/{id}": "A durable run and its journal.",
            "docs/{type}": "What a message type takes and gives.",
        }
        return {
            "resourceTemplates": [
                {"uriTemplate": f"mainspring://{shape}", "name": shape, "description": text, "mimeType": _JSON}
                for shape, text in shapes.items()
            ]
        }

    def _read_resource(self, params: dict[str, Any], call: _OpenCall) -> dict[str, Any]:
        uri = params.get("uri")
        kind, _, name = str(uri).removeprefix("mainspring://").partition("/")
        name = _encodable(unquote(name))
        with call.connect() as wire:
            if kind == "docs" and name == "messages":
                found: Any = list(listed(wire))
            elif kind == "docs":
                found = self._asked(wire, "Syscall.Describe", {"name": name})
            elif kind == "runs":
                found = self._asked(wire, "Run.History", {"id": name})
            elif kind == "topics":
                found = self._newest(wire, name)
            else:
                found = {}
        if not found:
            raise RpcError(NOT_FOUND, f"there is no resource {uri!r}")
        text = json.dumps(found, ensure_ascii=False, indent=1)
        return {"contents": [{"uri": uri, "mimeType": _JSON, "text": text}]}

    def _newest(self, wire: Wire, topic: str) -> dict[str, Any]:
        found: list[Any] = []
        partitions = self._asked(wire, "Bus.Offsets", {"topic": topic}).get("partitions")
        if partitions is None:
            return {}
        for each in partitions:
            begin = max(1, each["tail"] - _EVENTS + 1)
            data = {"topic": topic, "partition": each["partition"], "offset": begin, "limit": _EVENTS}
            found += self._asked(wire, "Bus.Read", data).get("events", [])
        newest = sorted(found, key=lambda event: event.get("ts", 0))[-_EVENTS:]
        return {"topic": topic, "partitions": partitions, "events": newest}

    def _asked(self, wire: Wire, type: str, data: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question; nothing where the node refuses it, as for a token that may not ask."""
        answer = wire.ask("query", type, data)
        found: dict[str, Any] = answer["data"] if answer["kind"] == "reply" else {}
        return found


_JSON: Final = "application/json"
_SLOW: Final[dict[str, Callable[[Server, dict[str, Any], _OpenCall], dict[str, Any]]]] = {
    "tools/list": Server._list_tools,
    "tools/call": Server._call_tool,
    "resources/list": Server._list_resources,
    "resources/templates/list": Server._list_templates,
    "resources/read": Server._read_resource,
}


def _is_slow(request: Any) -> bool:
    """Whether the node must be asked."""
    return isinstance(request, dict) and isinstance(request.get("method"), str) and request["method"] in _SLOW


def _key(request: dict[str, Any]) -> str:
    """The id of a request as a key of a table: 1 and "1" are two."""
    return json.dumps(request.get("id"))


def _hello(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}, "resources": {"subscribe": False, "listChanged": False}},
        "serverInfo": {"name": "mainspring", "version": version("mainspring")},
        "instructions": _INSTRUCTIONS,
    }


def _resource(kind: str, name: str, description: str) -> dict[str, Any]:
    uri = f"mainspring://{kind}/{quote(name, safe='')}"
    return {"uri": uri, "name": f"{kind}/{name}", "description": description, "mimeType": _JSON}


def _report_progress(params: dict[str, Any], send: Send, call: _OpenCall) -> None:
    """Say every second that a call goes on, to a client that asked for it."""
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if not isinstance(token, str | int):
        return

    def report() -> None:
        seconds = 0
        while not call.done.wait(_PROGRESS_S if seconds else 0.1) and not call.cancelled:
            seconds += 1
            text = f"the node has been at work for {seconds} s"
            params = {"progressToken": token, "progress": seconds, "message": text}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    threading.Thread(target=report, name="mainspring-mcp-progress", daemon=True).start()


def _encodable(value: Any) -> Any:
    """The value, unless it cannot be sent on: half a surrogate pair is JSON, but no text."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError, OverflowError):
        raise RpcError(INVALID_PARAMS, "a text has half a character in it, or the arguments are too deep") from None
    return value


def _failure(ident: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": message}}


def _send_unless_none(send: Send, answer: Any) -> None:
    if answer is not None:
        send(answer)


def serve_lines(server: Server, lines: IO[bytes], out: IO[str]) -> None:
    """Answer line by line until there are no more."""
    lock = threading.Lock()

    def send(answer: Any) -> None:
        text = json.dumps(answer, separators=(",", ":"))  # ASCII, whatever the terminal's encoding
        with lock:
            out.write(text + "\n")
            out.flush()

    while line := lines.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = lines.readline(MAX_LINE_BYTES)
            send(_failure(None, INVALID_REQUEST, f"a line has at most {MAX_LINE_BYTES} bytes"))
        elif line.strip():
            server.take(line, send)
    server.finish()


def mcp(
    *,
    node: WireOptions,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer commands, too, which change something.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Offer types like this, e.g. 'Order.*'; may be repeated."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve over HTTP at /mcp on this loopback address, not over pipes."),
    ] = None,
    timeout_ms: Annotated[
        int, typer.Option(min=1, metavar="MS", help="How long to wait for an answer of the node, in milliseconds.")
    ] = TIMEOUT_MS,
    as_json: SpeaksJsonOption = True,
) -> None:
    """Offer a node's messages to a language model. A Model Context Protocol server on standard input and output.

    Only queries are tools unless changes are allowed. Example: `mcp --only 'Order.*' --allow-changes`.
    """
    make = partial(Server, lambda: node.open(timeout_ms), allow_changes=allow_changes, only=tuple(only or ()))
    del as_json
    if http is not None:
        from mainspring.cli.program.mcp_http import serve_http

        serve_http(make, http)
        return
    serve_lines(make(), sys.stdin.buffer, sys.stdout)
