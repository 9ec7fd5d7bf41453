"""One process writes a log. The lock is the kernel's (`flock`), so it ends with the process however that ends: there is
no stale lock to remove by hand. The file also holds the owner's pid, only so that a refusal can name it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from mainspring.log.contract import LogLocked


class Ownership:
    """Held from construction until `release`. Raises `LogLocked` when another process, or another engine, holds it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LogLocked(
                f"the log at {path.parent} is in use by process {owner}",
                remedy="stop that process, or give this one its own data directory",
            ) from error
        except BaseException:
            os.close(self._descriptor)
            raise
        with suppress(OSError):  # on a full disk the lock still holds, only nameless
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The file stays: removing it could take it from under the next owner."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
