"""Memory: values under paths, kept in the log where there is one.

Keys are paths: they start with a slash, and empty segments collapse. What lies in `/vault` or below it must be sealed
already: the kernel refuses to keep a secret in the clear. Every change is announced as `Memory.Changed`, with the key
and not the value, because not everyone who may listen may read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec

from mainspring.builtin.answers import Messages, about
from mainspring.builtin.events import on_remote_change
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel
from mainspring.log import ABSENT, Batch, Change, InDoubt, Log

SPACE: Final = "memory"
MAX_VALUE_BYTES: Final = 65_536
MAX_KEY_BYTES: Final = 4_096
SEALED: Final = "pwenc:v1:"
VAULT: Final = "/vault/"

message: Final = Messages("Memory", "Values under paths.")

Key = Annotated[str, about("A path that starts with /, like /orders/17.")]


class MemoryResult(msgspec.Struct):
    success: bool
    message: str


class MemoryStore:
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


def memory_capability(kernel: Kernel) -> Capability:
    """The capability `Memory` of this kernel."""
    on_remote_change(kernel, kernel.log, lambda change: _stream_changes(kernel, change))
    return message.of(_MemoryMessages(kernel.log))


class _MemoryMessages:
    def __init__(self, log: Log | None) -> None:
        self._store = MemoryStore(log)

    @message("command", "Memory.Set", "SetValueRequest")
    async def set_value(
        self, ctx: Context, key: Key, value: Annotated[Any, about("Any JSON value; under /vault/ a sealed text.")]
    ) -> MemoryResult:
        """Keep a value under a key."""
        key = _path(key)
        if f"{key}/".startswith(VAULT) and not (isinstance(value, str) and value.startswith(SEALED)):
            raise Fail(422, f"Schema validation failed: data.value: only sealed texts ({SEALED}...) go under {VAULT}")
        if len(key.encode()) > MAX_KEY_BYTES:
            raise Fail(413, f"a key has at most {MAX_KEY_BYTES} bytes", remedy="choose a shorter one")
        encoded = msgspec.json.encode(value)
        if len(encoded) > MAX_VALUE_BYTES:
            raise Fail(413, f"a value has at most {MAX_VALUE_BYTES} bytes", remedy="store a BlobPointer")
        await self._store.put(key, encoded)
        ctx.emit("Memory.Changed", {"key": key, "change": "set"})
        return MemoryResult(True, "stored")

    @message("query", "Memory.Get", "GetValueRequest", gives="ValueResult.value")
    async def get_value(self, key: Key) -> Any:
        """The value under a key; 404 when there is none."""
        value = await self._store.get(_path(key))
        if value is None:
            raise Fail(404, "nothing is stored under this key")
        return msgspec.json.decode(value)

    @message("query", "Memory.List", "ListKeysRequest")
    async def list_values(
        self, prefix: Annotated[str, about("Only keys that start with this; empty for all.")] = ""
    ) -> dict[str, Any]:
        """The keys that start with a prefix, and each key with its value."""
        values = {key: msgspec.Raw(value) async for key, value in self._store.scan(_collapsed(prefix))}
        return {"keys": list(values), **values}

    @message("command", "Memory.Delete", "DeleteKeyRequest")
    async def delete_value(self, ctx: Context, key: Key) -> MemoryResult:
        """Delete a key; also right when there is nothing to delete."""
        key = _path(key)
        gone = await self._store.delete(key)
        if gone:
            ctx.emit("Memory.Changed", {"key": key, "change": "deleted"})
        return MemoryResult(True, "deleted" if gone else "nothing was stored")


def _stream_changes(kernel: Kernel, change: Change) -> None:
    for record in change.records:
        if record.space == SPACE:
            kind = "deleted" if record.version == ABSENT else "set"
            kernel.stream("Memory.Changed", {"key": record.key, "change": kind})


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


def read_value(_: str, value: bytes) -> None:
    """Raise where a value of the memory is not JSON."""
    msgspec.json.decode(value)
