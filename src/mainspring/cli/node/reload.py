"""`mainspring serve --reload`: start the node again whenever a file of the program changes. For development.

The node runs in a process of its own, started anew from nothing, so that no module keeps its old self. It is stopped in
order, as by Ctrl-C, before the next one starts; what must survive is in its data directory. A program that cannot be
imported leaves the watch running: the next change is the next try.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.3
STOP_S: Final = 20.0
_LEFT_OUT: Final = {"__pycache__", "node_modules", "venv", "data"}


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every Python and TOML file below the folder with its time and size."""
    return {str(path): (found.st_mtime_ns, found.st_size) for path, found in _files(folder)}


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _LEFT_OUT]
        for name in names:
            if name.endswith((".py", ".toml")):
                path = Path(root) / name
                try:
                    yield path, path.stat()
                except OSError:
                    continue  # an editor replaced it between the two looks


def run_again_and_again(command: list[str], folder: Path) -> int:
    """Run the command; run it again after each change; end with a signal."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    seen = snapshot(folder)
    child = _start(command)
    while not stopping.wait(INTERVAL_S):
        found = snapshot(folder)
        if found == seen:
            continue
        changed = sorted(Path(path).name for path in seen.keys() | found.keys() if seen.get(path) != found.get(path))
        sys.stderr.write(f"mainspring: {', '.join(changed)} changed; starting again\n")
        seen = found
        _stop(child)
        child = _start(command)
    return _stop(child)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C reaches the watch alone, which passes on one signal and not two."""
    return subprocess.Popen(command, start_new_session=True)


def _stop(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        return child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
