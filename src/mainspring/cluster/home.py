"""Home: a node's data directory as proof that the node's last life is over.

A node that was killed and starts again finds its own lease in the log. It may wait until the lease is over, as all
others have to; or it can show that nobody else can be the owner. The operating system's lock on a file in the data
directory is such proof: it ends with the process, however that ends. The file holds an id that was made once, so a node
keeps its name for as long as it keeps its directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mainspring.errors import BootError

FILE: Final = "node.id"
_LONGEST: Final = 64


class Home:
    """The lock on a data directory; `id` is the directory's own. `leave` lets go of it."""

    def __init__(self, data_dir: str | Path, new_id: Callable[[], str]) -> None:
        folder = Path(data_dir)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BootError(
                f"the data directory {folder} cannot be used: {error.strerror}",
                remedy="name a directory that the node may write to with --data",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise BootError(
                f"another node uses the data directory {folder}",
                remedy="give each node its own data directory with --data",
                code="log_locked",
            ) from None
        self.id: str = os.pread(self._descriptor, _LONGEST, 0).decode(errors="replace").strip()
        if not self.id:
            self.id = new_id()
            os.pwrite(self._descriptor, self.id.encode(), 0)
            os.fsync(self._descriptor)

    def leave(self) -> None:
        os.close(self._descriptor)
