"""Blob: data too large for a line travels as a file, and the message carries a pointer to it.

A handler returns `Blob(data)`; what leaves the kernel is a BlobPointer to a file under the data directory. The file's
name says when its time is up, so a node that was killed still knows, at its next start, which files to remove. A
pointer is checked before it is used: only its own members, a known scheme, and for each scheme what makes sense
there.

A pointer comes back from outside, where anybody can write one. So a `file` pointer leads only to a regular file in the
folder of blobs, never along a link, and the names there cannot be guessed. Who asks over the network is told the name
without the folder: `/blobs/<name>` (`hide_folder`), and may send it back like that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import os
import re
import secrets
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from mainspring.durations import Duration, duration_ms
from mainspring.errors import Fail
from mainspring.kernel.errors import NotConfigured
from mainspring.loop import Clock, Loop
from mainspring.message import Ids
from mainspring.private_files import make_private_folder, open_private

DEFAULT_BLOB_TTL: Final = "1h"  # long enough to fetch, short enough not to fill a disk
MAX_INLINE_BYTES: Final = 4096  # a `data` pointer holds little, the rest belongs in a file
MAX_BLOB_BYTES: Final = 64 << 20  # read into memory at once, unless a handler says otherwise
_NAME: Final = re.compile(r"([0-9]{15})-.+\.blob")
_SHOWN: Final = "/blobs"  # stands for the folder where its place is nobody's business
_SECRET_BYTES: Final = 16
_AUTHORITY: Final = re.compile(r"[^\s/?#@]+")


class BlobUnavailable(Fail):
    """The pointer is right, but what it points to cannot be read. A handler that lets it pass refuses its request
    with it: a blob that has gone is no fault of the actor.
    """


class Blob:
    """Data to travel beside a message. `ttl` is how long it stays; text is stored as UTF-8."""

    __slots__ = ("data", "ttl_ms")

    def __init__(self, data: bytes | str, *, ttl: Duration = DEFAULT_BLOB_TTL) -> None:
        self.data: bytes = data.encode() if isinstance(data, str) else bytes(data)
        self.ttl_ms: int = duration_ms(ttl)
        if self.ttl_ms <= 0:
            raise ValueError("ttl must be positive")


_text = Annotated[str, msgspec.Meta(min_length=1)]


class BlobPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where data is: a file of this machine, an https address, or the data itself. Checked when made."""

    scheme: Annotated[
        Literal["file", "https", "data"], msgspec.Meta(description="Where the data is: file, https or data.")
    ]
    authority: Annotated[str, msgspec.Meta(description="Host and port; only for https.")] = ""
    path: Annotated[_text, msgspec.Meta(description="Absolute path, or the media type and payload of data.")]
    query: Annotated[str, msgspec.Meta(description="Query of an https address.")] = ""
    fragment: Annotated[str, msgspec.Meta(description="Fragment.")] = ""

    def __post_init__(self) -> None:
        if "\0" in self.path:
            raise ValueError("a path has no NUL")
        if self.scheme == "https":
            self._check_https()
        elif self.authority or self.query:
            raise ValueError(f"a {self.scheme} pointer has no authority and no query")
        elif self.scheme == "file":
            if not self.path.startswith("/") or ".." in self.path.split("/"):
                raise ValueError("a file pointer has an absolute path without ..")
        else:
            self.inline()

    def _check_https(self) -> None:
        if not _AUTHORITY.fullmatch(self.authority) or not self.path.startswith("/"):
            raise ValueError("an https pointer needs an authority and a path that begins with /")
        if self.authority.endswith(":443"):
            msgspec.structs.force_setattr(self, "authority", self.authority.removesuffix(":443"))

    def inline(self) -> bytes:
        """What a `data` pointer holds."""
        kind, comma, payload = self.path.partition(",")
        if not comma:
            raise ValueError("a data pointer holds a media type, a comma and the payload")
        try:
            data = unquote_to_bytes(payload)
            data = base64.b64decode(data, validate=True) if kind.endswith(";base64") else data
        except binascii.Error:
            raise ValueError("a data pointer's base64 is broken") from None
        if len(data) > MAX_INLINE_BYTES:
            raise ValueError(f"a data pointer holds at most {MAX_INLINE_BYTES} bytes")
        return data


class BlobStore:
    """The folder of blobs. `now_ms` is wall-clock time, passed by the caller: names outlive the process."""

    def __init__(self, folder: Path, ids: Ids) -> None:
        self.folder = folder
        self._ids = ids

    def store(self, blob: Blob, now_ms: int) -> BlobPointer:
        """Write the data; the file appears whole or not at all. Blocking."""
        make_private_folder(self.folder)
        name = f"{now_ms + blob.ttl_ms:015}-{self._ids()}-{secrets.token_hex(_SECRET_BYTES)}.blob"
        path = self.folder.resolve() / name
        partial = path.with_suffix(".partial")
        with open(partial, "xb", opener=open_private) as file:
            file.write(blob.data)
        partial.rename(path)
        return BlobPointer(scheme="file", path=str(path))

    def sweep(self, now_ms: int, *, leftovers: bool = False) -> int | None:
        """Remove what is past its time; when the next one is due (epoch ms), or None.

        `leftovers` also removes half-written files: right at boot, when nobody is writing.
        """
        due: list[int] = []
        if not self.folder.is_dir():
            return None
        for path in self.folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and int(name[1]) > now_ms:
                due.append(int(name[1]))
            elif name or (leftovers and path.suffix == ".partial"):
                path.unlink(missing_ok=True)
        return min(due, default=None)


_folders: Final[list[str]] = []  # of the kernels of this process: where pointers may lead


def allow_folder(folder: Path) -> None:
    """Let pointers lead to blobs in this folder."""
    _folders.append(str(folder.resolve()))


def forget_folder(folder: Path) -> None:
    """The opposite of `allow_folder`."""
    if str(folder.resolve()) in _folders:
        _folders.remove(str(folder.resolve()))


class BlobKeeper:
    """Stores blobs without stopping the loop, and removes them when their time is up."""

    def __init__(self, data_dir: str | Path | None, loop: Loop, clock: Clock, ids: Ids) -> None:
        self.folder: Path | None = None if data_dir is None else Path(data_dir) / "blobs"
        self._store = None if self.folder is None else BlobStore(self.folder, ids)
        self._loop = loop
        self._clock = clock
        self._timer: Hashable = None
        self._due_ms = 0  # epoch, of the sweep that is planned

    def start(self) -> None:
        """Remove what an earlier node left behind."""
        if self.folder is not None:
            allow_folder(self.folder)
        self._sweep(True)

    def stop(self) -> None:
        if self.folder is not None:
            forget_folder(self.folder)
        self._cancel()

    def hide_folder(self, text: bytes) -> bytes:
        """A JSON text for somebody who has no business in this machine's files."""
        if self.folder is None:
            return text
        return text.replace(msgspec.json.encode(str(self.folder.resolve()))[1:-1], _SHOWN.encode())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._loop.cancel(self._timer)
            self._timer = None

    async def store(self, blob: Blob) -> BlobPointer:
        if self._store is None:
            raise NotConfigured("there is no data directory for blobs", remedy="give the kernel a data_dir")
        pointer = await asyncio.to_thread(self._store.store, blob, self._clock.wall_ms())
        self.plan(self._clock.wall_ms() + blob.ttl_ms)
        return pointer

    def plan(self, due_ms: int) -> None:
        """See to it that the folder is swept at `due_ms` (epoch)."""
        if self._timer is not None and self._due_ms <= due_ms:
            return
        self._cancel()
        self._due_ms = due_ms
        delay = max(0, due_ms - self._clock.wall_ms())
        self._timer = self._loop.schedule(delay, self._sweep, False, ref=False)

    def _sweep(self, leftovers: bool) -> None:
        self._timer = None
        due = None if self._store is None else self._store.sweep(self._clock.wall_ms(), leftovers=leftovers)
        if due is not None:
            self.plan(due)


def read_blob(pointer: BlobPointer, *, max_bytes: int = MAX_BLOB_BYTES) -> bytes:
    """What the pointer points to; blocking, so an `async def` handler calls `ctx.read_blob`.

    A file is one in the folder of blobs. An https pointer is for the handler to fetch: it is refused here.
    """
    if pointer.scheme == "data":
        return pointer.inline()
    if pointer.scheme == "https":
        raise BlobUnavailable(
            404, "resource unavailable: https pointers are not fetched", remedy="fetch the address in the handler"
        )
    try:
        with open(_open_file(pointer.path), "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise BlobUnavailable(404, f"resource unavailable: {error.strerror}") from None
    if len(data) > max_bytes:
        raise BlobUnavailable(
            413, f"resource unavailable: the blob is larger than {max_bytes} bytes", remedy="raise max_bytes"
        )
    return data


def _open_file(path: str) -> int:
    """A descriptor of a blob's file. What is no blob is not there: no link, FIFO or device is opened."""
    folder, name = os.path.split(path)
    if _NAME.fullmatch(name) is None or not (folder in _folders or folder == _SHOWN):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for each in _folders if folder == _SHOWN else (folder,):
        try:
            descriptor = os.open(os.path.join(each, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
