"""The built-in capabilities: Syscall, Memory and blobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from mainspring import App, Fail
from mainspring.kernel import Blob, BlobPointer, BlobUnavailable, read_blob
from mainspring.log import Log, MemoryEngine
from mainspring.loop import VirtualClock
from tests.support.kernel import booted, command, query, served, virtual


def typed() -> App:
    app = App("typed")

    @dataclass
    class Reserve:
        sku: Annotated[str, msgspec.Meta(description="What to reserve.")]
        unitCount: int = 1

    @dataclass
    class Reserved:
        id: str

    @app.command("Stock.Reserve")
    async def reserve(data: Reserve, ctx: Any) -> Reserved:
        """Keep something for a customer."""
        ran.append(1)
        return Reserved("x")

    @app.query("Stock.Plain")
    def plain(data: dict, ctx: Any) -> int:
        return 1

    return app


ran: list[int] = []


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        return found
    return schema


@virtual
async def test_describe_one_by_name_without_waking_an_actor(clock: VirtualClock) -> None:
    """Checklist 4, 156: name, kind, input and output as JSON Schema, with descriptions and `required`."""
    async with booted(typed(), clock) as kernel:
        found = await kernel.ask("query", "Syscall.Describe", {"name": "Stock.Reserve"})
        assert (found["name"], found["kind"], found["description"]) == (
            "Stock.Reserve",
            "command",
            "Keep something for a customer.",
        )
        given = resolved(found["input"])
        assert given["type"] == "object"
        assert given["required"] == ["sku"]
        assert given["properties"]["sku"] == {"type": "string", "description": "What to reserve."}
        assert given["properties"]["unitCount"]["description"] == "Unit count."
        assert resolved(found["output"])["properties"]["id"]["type"] == "string"
        plain = await kernel.ask("query", "Syscall.Describe", {"name": "Stock.Plain"})
        assert plain["input"] == {"type": "object", "properties": {}, "required": []}
        with pytest.raises(Fail) as caught:
            await kernel.ask("query", "Syscall.Describe", {"name": "No.Such"})
        assert caught.value.code == 404
        with pytest.raises(Fail) as caught:
            await kernel.ask("query", "Syscall.Describe", {"neither": 1})
        assert caught.value.code == 422
    assert ran == []


@virtual
async def test_describe_several_and_all(clock: VirtualClock) -> None:
    """Checklist 156: the unknown ones are left out; every input property of a built-in is described."""
    async with booted(typed(), clock) as kernel:
        ask = lambda *names: kernel.ask("query", "Syscall.Describe", {"capabilities": list(names)})  # noqa: E731
        assert list((await ask("Stock.Plain", "No.Such", "constructor"))["schemas"]) == ["Stock.Plain"]
        assert await ask() == {"schemas": {}}
        everything = (await ask("*"))["schemas"]
        handles = {
            handle.partition(":")[2] for entry in kernel.summary()["capabilities"] for handle in entry["handles"]
        }
        assert set(everything) == handles
        for type, entry in everything.items():
            assert entry["description"], type
            assert "required" in resolved(entry["input"]), type
            for part in resolved(entry["input"]).get("properties", {}).values():
                assert part["description"], type


@virtual
async def test_who_asks_for_everything_does_not_hold_up_the_loop(clock: VirtualClock) -> None:
    async with booted(typed(), clock) as kernel:
        answered: list[str] = []

        async def ask(type: str, data: Any) -> None:
            await kernel.ask("query", type, data)
            answered.append(type)

        await asyncio.gather(ask("Syscall.Describe", {"capabilities": ["*"]}), ask("Timer.List", {}))
        assert answered == ["Timer.List", "Syscall.Describe"]


@virtual
async def test_everything_is_described_over_a_socket_page_by_page(clock: VirtualClock) -> None:
    """What agents are told to ask first: an overview in one line, and with its cursor all schemas."""
    app = App("wide")
    wide = msgspec.defstruct("Wide", [(f"member{number}", int) for number in range(900)])
    app.query("Wide.Load", description="More than a line. And more.")(_typed(wide))
    async with served(app, clock) as site:
        client = await site.connect()
        request: dict[str, Any] = {"capabilities": ["*"]}
        first = (await client.call(query("Syscall.Describe", request)))["data"]
        handles = {each.partition(":")[2] for part in site.kernel.summary()["capabilities"] for each in part["handles"]}
        assert set(first["schemas"]) == handles
        assert all(entry["kind"] and entry["description"] for entry in first["schemas"].values())
        assert first["schemas"]["Wide.Load"]["description"] == "More than a line"
        whole = await site.kernel.ask("query", "Syscall.Describe", request)
        seen: dict[str, Any] = {}
        cursor = first["cursor"]
        while cursor:
            page = (await client.call(query("Syscall.Describe", {**request, "cursor": cursor})))["data"]
            assert not seen.keys() & page["schemas"].keys()
            seen |= page["schemas"]
            cursor = page.get("cursor")
        assert seen.pop("Wide.Load") == {"kind": "query", "description": "More than a line"}
        del whole["schemas"]["Wide.Load"]
        assert seen == whole["schemas"]
        wrong = await client.call(query("Syscall.Describe", {**request, "cursor": "No.Such"}))
        assert (wrong["data"]["code"], "cursor" in wrong["data"]["remedy"]) == (422, True)


def _typed(hint: Any) -> Any:
    def load(data: Any, ctx: Any) -> None:
        return None

    load.__annotations__["data"] = hint
    return load


@virtual
async def test_types_are_listed_page_by_page(clock: VirtualClock) -> None:
    app = App("many")
    for number in range(100):
        app.query(f"Many.Type{number}", description="x" * 500)(lambda data, ctx: None)
    async with served(app, clock) as site:
        client = await site.connect()
        found, page, pages = [], 0, 1
        while page < pages:
            answer = (await client.call(query("Syscall.List", {"page": page})))["data"]
            found += [entry["type"] for entry in answer["types"]]
            page, pages = page + 1, answer["pages"]
        assert {f"Many.Type{number}" for number in range(100)} <= set(found)
        assert len(found) == len(set(found))


@virtual
async def test_authentication_is_optional_and_answered_once(clock: VirtualClock) -> None:
    """Checklist 139."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        assert (await client.call(query("Syscall.Ping", {"payload": 1})))["kind"] == "reply"
        answer = await client.call(command("Syscall.Authenticate", {}))
        assert answer["data"]["authenticated"] is True
        assert await client.fence() == []


@virtual
async def test_shutdown_is_answered_and_asked_for_once(clock: VirtualClock) -> None:
    """Checklist 36."""
    asked: list[int] = []
    async with booted(App("x"), clock, on_shutdown=lambda: asked.append(1)) as kernel:
        answer = await kernel.ask("command", "Syscall.Shutdown", {})
        assert answer["success"] is True
        assert isinstance(answer["message"], str)
    assert asked == [1]


@pytest.fixture(params=["without a log", "with a log"])
def log(request: pytest.FixtureRequest) -> Log | None:
    return Log(MemoryEngine()) if request.param == "with a log" else None


@virtual
async def test_memory_keeps_what_it_is_given(clock: VirtualClock, log: Log | None) -> None:
    """Checklist 135, 136: and says so to whoever listens, with the key and its cause."""
    app, changes = App("mem"), []

    @app.on("Memory.Changed")
    async def changed(data: dict, ctx: Any) -> None:
        changes.append((data["key"], data["change"], ctx.message.metadata.causation))

    if log is not None:
        await log.open()
    async with served(app, clock, log=log) as site:
        client = await site.connect()
        assert (await client.call(query("Memory.Get", {"key": "/a"})))["data"]["code"] == 404
        for value in ({"n": [1, 2.5, None, "é", 10**30]}, "", 0, False, None):
            request = command("Memory.Set", {"key": "/a", "value": value})
            assert (await client.call(request))["data"]["success"] is True
            assert (await client.call(query("Memory.Get", {"key": "//a/"})))["data"] == {"value": value}
            assert changes[-1] == ("/a", "set", request["metadata"]["id"])
        gone = command("Memory.Delete", {"key": "/a"})
        assert (await client.call(gone))["data"]["success"] is True
        await client.fence()
        assert changes[-1] == ("/a", "deleted", gone["metadata"]["id"])
        count = len(changes)
        assert (await client.call(command("Memory.Delete", {"key": "/a"})))["data"]["success"] is True
        await client.fence()
        assert len(changes) == count, "nothing changed"
        assert await client.fence() == []


@virtual
async def test_memory_lists_by_prefix(clock: VirtualClock, log: Log | None) -> None:
    if log is not None:
        await log.open()
    async with booted(App("x"), clock, log=log) as kernel:
        for key, value in {"/l/a": 1, "/l/b": {"x": None}, "/l/b/c": [3], "/list": "outside"}.items():
            await kernel.ask("command", "Memory.Set", {"key": key, "value": value})
        found = await kernel.ask("query", "Memory.List", {"prefix": "/l/"})
        assert found == {"keys": ["/l/a", "/l/b", "/l/b/c"], "/l/a": 1, "/l/b": {"x": None}, "/l/b/c": [3]}
        assert (await kernel.ask("query", "Memory.List", {}))["keys"] == ["/l/a", "/l/b", "/l/b/c", "/list"]
        assert await kernel.ask("query", "Memory.List", {"prefix": "/nothing/"}) == {"keys": []}


@virtual
async def test_memory_outlives_the_kernel_when_there_is_a_log(clock: VirtualClock) -> None:
    log = Log(MemoryEngine())
    await log.open()
    async with booted(App("x"), clock, log=log) as kernel:
        await kernel.ask("command", "Memory.Set", {"key": "/kept", "value": 1})
    async with booted(App("x"), clock, log=log) as kernel:
        assert await kernel.ask("query", "Memory.Get", {"key": "/kept"}) == {"value": 1}


@virtual
async def test_memory_key_and_vault_rules(clock: VirtualClock) -> None:
    async with booted(App("x"), clock) as kernel:
        for key in ("", "relative", "/", "//", 5, None):
            with pytest.raises(Fail) as caught:
                await kernel.ask("command", "Memory.Set", {"key": key, "value": 1})
            assert caught.value.code == 422
        for value in ("plain", 5, None, ["pwenc:v1:x"]):
            for key in ("//vault/x", "/vault/"):
                with pytest.raises(Fail) as caught:
                    await kernel.ask("command", "Memory.Set", {"key": key, "value": value})
                assert caught.value.code == 422
        assert await kernel.ask("command", "Memory.Set", {"key": "/vault/x", "value": "pwenc:v1:abc"})
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Memory.Set", {"key": "/big", "value": "x" * 70_000})
        assert caught.value.code == 413


# --- blobs ------------------------------------------------------------------------------------------------------


def blobs() -> App:
    app = App("blobs")

    @app.query("Blob.Make")
    def make(data: dict, ctx: Any) -> Blob:
        return Blob("x" * data["size"], ttl=data.get("ttl", 60_000) / 1_000)

    @app.query("Blob.Read")
    async def read(data: BlobPointer, ctx: Any) -> int:
        return len(read_blob(data))

    return app


@virtual
async def test_a_blob_travels_as_a_pointer_and_goes_when_its_time_is_up(clock: VirtualClock, tmp_path: Path) -> None:
    """Checklist 154, 158."""
    async with served(blobs(), clock, data_dir=tmp_path) as site:
        client = await site.connect()
        pointer = (await client.call(query("Blob.Make", {"size": 100_000})))["data"]
        short = (await client.call(query("Blob.Make", {"size": 5, "ttl": 1_000})))["data"]
        assert list(pointer) == ["scheme", "path"]
        assert pointer["scheme"] == "file"
        path = Path(pointer["path"])
        assert path.is_relative_to(tmp_path.resolve())
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == "x" * 100_000
        assert (await client.call(query("Blob.Read", pointer)))["data"] == 100_000
        await asyncio.sleep(2)
        assert not Path(short["path"]).exists()
        assert path.exists()
        await asyncio.sleep(60)
        assert not path.exists()
        assert (await client.call(query("Blob.Read", pointer)))["data"]["code"] == 404


@virtual
async def test_blobs_of_a_node_that_was_killed_are_removed_at_the_next_start(
    clock: VirtualClock, tmp_path: Path
) -> None:
    """Checklist 158."""
    async with booted(blobs(), clock, data_dir=tmp_path) as kernel:
        old = await kernel.ask("query", "Blob.Make", {"size": 1, "ttl": 1_000})
        new = await kernel.ask("query", "Blob.Make", {"size": 1, "ttl": 9_000_000})
    (tmp_path / "blobs" / "x.partial").write_text("half")
    clock.advance(5_000)
    async with booted(blobs(), clock, data_dir=tmp_path):
        assert not Path(old["path"]).exists()
        assert Path(new["path"]).exists()
        assert sorted(path.suffix for path in (tmp_path / "blobs").iterdir()) == [".blob"]


@virtual
async def test_a_blob_without_a_data_directory_is_a_crash_that_says_why(clock: VirtualClock) -> None:
    async with booted(blobs(), clock) as kernel:
        with pytest.raises(Fail, match="data_dir"):
            await kernel.ask("query", "Blob.Make", {"size": 1})


GOOD_POINTERS: list[dict[str, Any]] = [
    {"scheme": "file", "path": "/tmp/x"},
    {"scheme": "file", "path": "/tmp/x", "fragment": "part"},
    {"scheme": "https", "authority": "example.org", "path": "/x", "query": "a=1"},
    {"scheme": "https", "authority": "example.org:8443", "path": "/"},
    {"scheme": "data", "path": "text/plain,hello"},
    {"scheme": "data", "path": "text/plain;base64,aGVsbG8="},
]
BAD_POINTERS: list[Any] = [
    {"scheme": "file"},
    {"path": "/tmp/x"},
    {"scheme": "file", "path": ""},
    {"scheme": "file", "path": "relative"},
    {"scheme": "file", "path": "/a/../etc/passwd"},
    {"scheme": "file", "path": "/a\0b"},
    {"scheme": "file", "path": "/x", "authority": "host"},
    {"scheme": "file", "path": "/x", "query": "q"},
    {"scheme": "FILE", "path": "/x"},
    {"scheme": "http", "path": "/x"},
    {"scheme": "https", "path": "/x"},
    {"scheme": "https", "authority": "h", "path": "x"},
    {"scheme": "https", "authority": "user@h", "path": "/x"},
    {"scheme": "data", "path": "no comma"},
    {"scheme": "data", "path": "text/plain;base64,%%%"},
    {"scheme": "data", "path": "text/plain," + "x" * 5000},
    {"scheme": "data", "path": "text/plain,x", "authority": "h"},
    {"scheme": "file", "path": "/x", "extra": 1},
    "file:///x",
    None,
]


@virtual
async def test_pointers_are_checked_before_use(clock: VirtualClock) -> None:
    """Checklist 158: accepted and rejected pointers."""
    async with booted(blobs(), clock) as kernel:
        for pointer in GOOD_POINTERS:
            [outcome] = await asyncio.gather(kernel.ask("query", "Blob.Read", pointer), return_exceptions=True)
            assert getattr(outcome, "code", 404) == 404, pointer
        for pointer in BAD_POINTERS:
            with pytest.raises(Fail) as caught:
                await kernel.ask("query", "Blob.Read", pointer)
            assert caught.value.code == 422, pointer


def test_a_pointer_is_written_in_its_order_without_empty_members() -> None:
    """Checklist 158."""
    pointer = BlobPointer(scheme="https", authority="example.org:443", path="/x", query="", fragment="f")
    assert msgspec.json.encode(pointer) == b'{"scheme":"https","authority":"example.org","path":"/x","fragment":"f"}'
    assert read_blob(BlobPointer(scheme="data", path="text/plain;base64,aGVsbG8=")) == b"hello"
    with pytest.raises(BlobUnavailable):
        read_blob(BlobPointer(scheme="file", path="/nothing/here"))
    with pytest.raises(BlobUnavailable, match="fetch"):
        read_blob(pointer)
    with pytest.raises(ValueError, match="ttl"):
        Blob(b"", ttl=0)


@virtual
async def test_a_blob_that_is_gone_is_an_answer_and_no_crash(clock: VirtualClock) -> None:
    """Checklist 158: as often as anybody asks."""
    async with served(blobs(), clock) as site:
        client = await site.connect()
        for _ in range(6):
            answer = await client.call(query("Blob.Read", {"scheme": "file", "path": "/nothing/here"}))
            assert (answer["kind"], answer["type"], answer["data"]["code"]) == ("error", "Blob.Read", 404)
