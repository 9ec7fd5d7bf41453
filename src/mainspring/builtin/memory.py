"""Memory: values under paths, kept in the log where there is one.

Keys are paths: they start with a slash, and empty segments collapse. What lies in `/vault` or below it must be sealed
already: the kernel refuses to keep a secret in the clear. Every change is announced as `Memory.Changed`, with the key
and not the value, because whoever may listen is not always whoever may read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec

from mainspring.builtin.other_events import hear_others, stream
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel, handler_from
from mainspring.log import ABSENT, Batch, Change, InDoubt, Log

SPACE: Final = "memory"
MAX_VALUE_BYTES: Final = 65_536
SEALED: Final = "pwenc:v1:"
VAULT: Final = "/vault/"

Key = Annotated[str, msgspec.Meta(description="A path that starts with /, like /orders/17.")]


class Set(msgspec.Struct):
    key: Key
    value: Annotated[Any, msgspec.Meta(description="Any JSON value; under /vault/ a sealed text.")]


class Get(msgspec.Struct):
    key: Key


class Value(msgspec.Struct):
    value: Any


class ListKeys(msgspec.Struct):
    prefix: Annotated[str, msgspec.Meta(description="Only keys that start with this; empty for all.")] = ""


class Delete(msgspec.Struct):
    key: Key


class Done(msgspec.Struct):
    success: bool
    message: str


class Shelf:
    """Where the values are: the log, or a dictionary that is forgotten with the node."""

    def __init__(self, log: Log | None) -> None:
        self._log = log
        self._values: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        if self._log is None:
            return self._values.get(key)
        record = await self._log.get(SPACE, key)
        return None if record is None else record.value

    async def put(self, key: str, value: bytes) -> None:
        if self._log is None:
            self._values[key] = value
            return
        batch = Batch()
        batch.put(SPACE, key, value)
        await self._commit(batch)

    async def delete(self, key: str) -> bool:
        """Whether there was something to delete."""
        if self._log is None:
            return self._values.pop(key, None) is not None
        if await self._log.get(SPACE, key) is None:
            return False
        batch = Batch()
        batch.delete(SPACE, key)
        await self._commit(batch)
        return True

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        if self._log is None:
            for key in sorted(self._values):
                if key.startswith(prefix):
                    yield key, self._values[key]
            return
        async for record in self._log.scan(SPACE, prefix):
            yield record.key, record.value

    async def _commit(self, batch: Batch) -> None:
        assert self._log is not None
        try:
            await self._log.commit(batch)
        except InDoubt:
            raise Fail(503, "the change may have been stored", remedy="ask again: twice is as good as once") from None
        except MainspringError as error:
            raise Fail(503, "the value could not be stored", remedy=error.remedy or "try again") from None


def memory(kernel: Kernel) -> Capability:
    """The capability `Memory` of this kernel."""
    shelf = Shelf(kernel.log)
    hear_others(kernel, kernel.log, lambda change: _stream_changes(kernel, change))

    async def set_value(data: Set, ctx: Context) -> Done:
        """Keep a value under a key."""
        key = _path(data.key)
        if f"{key}/".startswith(VAULT) and not (isinstance(data.value, str) and data.value.startswith(SEALED)):
            raise Fail(422, f"Schema validation failed: data.value: only sealed texts ({SEALED}...) go under {VAULT}")
        encoded = msgspec.json.encode(data.value)
        if len(encoded) > MAX_VALUE_BYTES:
            raise Fail(413, f"a value has at most {MAX_VALUE_BYTES} bytes", remedy="store a BlobPointer")
        await shelf.put(key, encoded)
        ctx.emit("Memory.Changed", {"key": key, "change": "set"})
        return Done(True, "stored")

    async def get_value(data: Get, ctx: Context) -> Value:
        """The value under a key; 404 when there is none."""
        found = await shelf.get(_path(data.key))
        if found is None:
            raise Fail(404, "nothing is stored under this key")
        return Value(msgspec.json.decode(found))

    async def list_values(data: ListKeys, ctx: Context) -> dict[str, Any]:
        """The keys that start with a prefix, and each key with its value."""
        prefix = _collapsed(data.prefix)
        found = {key: msgspec.Raw(value) async for key, value in shelf.scan(prefix)}
        return {"keys": list(found), **found}

    async def delete_value(data: Delete, ctx: Context) -> Done:
        """Forget a key; also right when there is nothing to forget."""
        key = _path(data.key)
        gone = await shelf.delete(key)
        if gone:
            ctx.emit("Memory.Changed", {"key": key, "change": "deleted"})
        return Done(True, "deleted" if gone else "nothing was stored")

    handlers = [
        handler_from("command", "Memory.Set", set_value),
        handler_from("query", "Memory.Get", get_value),
        handler_from("query", "Memory.List", list_values),
        handler_from("command", "Memory.Delete", delete_value),
    ]
    return Capability(id="Memory", description="Values under paths.", handlers=handlers)


def _stream_changes(kernel: Kernel, change: Change) -> None:
    for record in change.records:
        if record.space == SPACE:
            kind = "deleted" if record.version == ABSENT else "set"
            stream(kernel, "Memory.Changed", {"key": record.key, "change": kind})


def _collapsed(text: str) -> str:
    while "//" in text:
        text = text.replace("//", "/")
    return text


def _path(key: str) -> str:
    """The key as it is stored: one slash between segments, none at the end."""
    path = _collapsed(key)
    if not path.startswith("/") or path == "/":
        raise Fail(422, "Schema validation failed: data.key: a key is a path that starts with /")
    return path.removesuffix("/")
