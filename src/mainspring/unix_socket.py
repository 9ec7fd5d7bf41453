"""A unix socket to listen on: only its owner can use it, a dead server's is replaced, a live one's is respected."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mainspring.errors import BootError
from mainspring.private_files import make_private_folder

logger: logging.Logger = logging.getLogger("mainspring")

BACKLOG: Final = 512  # connections that wait to be accepted
LONGEST_PATH: Final = 100  # bytes; systems allow 104 or 108

Identity = tuple[int, int]
"""Device and inode of a socket file: tells the file a server made from one that another server put there later."""


def place_to_listen(given: str, data: str, name: str) -> Path:
    """Where a node puts its socket: at the `given` path, else in the user's runtime directory, else beside its data.

    All nodes of a user share the runtime directory: the first one has its socket there, the next one beside its data.
    """
    return _place(given, data, name, lambda shared, own: own if is_listening(shared) else shared)


def place_to_ask(given: str, data: str, name: str) -> Path:
    """Where a node of this data directory is likely to listen."""
    return _place(given, data, name, lambda shared, own: own if is_listening(own) else shared)


def _place(given: str, data: str, name: str, choose: Callable[[Path, Path], Path]) -> Path:
    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), Path(data, name)
    if given:
        return Path(given)
    return choose(Path(runtime, "mainspring", name), own) if runtime and _belongs_to_us(runtime) else own


def _belongs_to_us(folder: str) -> bool:
    """Whether the runtime directory is this user's: `sudo -E` and the like leave that of another one."""
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return True  # it is made


def is_foreign(path: Path) -> bool:
    """Whether what is there belongs to another user, who is not root either: that user decides what it is."""
    try:
        return os.stat(path).st_uid not in (os.geteuid(), 0)
    except OSError:
        return False


def private_place(data: str) -> Path:
    """Where the node of this data directory serves other processes of its program; every one of them finds it."""
    beside = Path(data).resolve() / "node.sock"
    if len(os.fsencode(beside)) <= LONGEST_PATH:
        return beside
    name = hashlib.sha256(os.fsencode(beside)).hexdigest()[:24]
    return Path(tempfile.gettempdir(), f"mainspring-{os.getuid()}", f"{name}.sock")


def is_listening(path: Path) -> bool:
    """Whether a server accepts connections at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def listen_at(path: Path) -> socket.socket:
    """A listening socket at `path`. Its folder is locked meanwhile: of two servers that start at once, one is refused.

    Without that, both could find the socket of a dead server, and the slower one would remove the faster one's.
    """
    try:
        make_private_folder(path.parent)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BootError(f"the socket {path} cannot be used: {error.strerror or error}") from None
    try:
        if is_foreign(path.parent):
            _refuse_foreign(path)
        fcntl.flock(folder, fcntl.LOCK_EX)
        return _listening(path)
    finally:
        os.close(folder)


def _refuse_foreign(path: Path) -> None:
    text = f"the folder of the socket {path} belongs to another user, who could put another socket there"
    if os.geteuid():
        remedy = "choose a path in a folder of your own with --kernel-socket and --loop-socket"
        raise BootError(text, remedy=remedy)
    logger.warning("%s", text)  # root works in folders of others, and is told


def identity_of(path: Path) -> Identity:
    """Which file is at `path` now."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def remove_socket(path: Path, identity: Identity | None) -> None:
    """Remove the socket file, unless it is gone or another server's by now."""
    try:
        if identity is not None and identity_of(path) == identity:
            os.unlink(path)
    except FileNotFoundError:
        pass


def _listening(path: Path) -> socket.socket:
    try:
        _clear_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise BootError(f"the socket {path} cannot be used: {error.strerror or error}") from None
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise BootError(
            f"the socket {path} cannot be bound: {error.strerror or error}",
            remedy="give a short path in a folder you may write to",
        ) from None
    finally:
        os.umask(mask)
    return listener


def _clear_stale(path: Path) -> None:
    """Remove a socket without a server behind it; anything else at that path is left alone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BootError(f"{path} exists and is not a socket", remedy="move it away, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise BootError(f"cannot tell whether {path} is in use: {error.strerror or error}") from None
        else:
            raise BootError(
                f"another server listens on {path}",
                remedy="stop it, or choose another path with --kernel-socket and --loop-socket",
            )
    path.unlink(missing_ok=True)
