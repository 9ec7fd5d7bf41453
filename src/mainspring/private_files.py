"""Files and folders for their owner alone, whatever the umask, with names that survive a loss of power."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

logger: logging.Logger = logging.getLogger("mainspring")

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_folder(path: str | Path) -> None:
    """Make the folder, and those above it that are missing, with mode 0700; one that exists stays as it is.

    A new name is durable when this returns: a loss of power cannot take away the folder of a file that was fsynced.
    """
    missing: list[Path] = []
    folder = Path(path)
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, FOLDER_MODE)
        except FileExistsError:  # another process was faster
            continue
        sync_path(each.parent)
    if not Path(path).is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def open_private(path: str | Path, flags: int) -> int:
    """A descriptor of a file that only its owner may read and write; usable as an `opener`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def make_private_file(path: Path) -> None:
    """Have the file there, so that programs which make it with a wider mode find it."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))


def narrow(path: Path) -> None:
    """Take the rights of other users on a file or folder away, and say so; warn where that is not possible."""
    try:
        found = os.stat(path)
        mode = stat.S_IMODE(found.st_mode)
        wanted = mode & ~0o077
        if mode == wanted:
            return
        if found.st_mode & stat.S_ISVTX:
            raise PermissionError(1, "all users of this machine share it")
        os.chmod(path, wanted)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning(
            "other users may read %s (mode %03o), and that cannot be changed: %s", path, mode, error.strerror
        )
        return
    logger.warning("%s could be read by other users (mode %03o); its mode is now %03o", path, mode, wanted)


def sync_path(path: Path) -> None:
    """Make what was written to a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
