"""Where the settings of a command come from: its flags, the environment, and a file."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring.settings import FILE_NAME, Loaded, load


def find_file(config: Path | None) -> Path | None:
    """The file to read: the one named, the one the environment names, or the usual one where it exists."""
    if config is not None:
        return config
    if named := os.environ.get("MAINSPRING_CONFIG"):
        return Path(named)
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None


def load_all(config: Path | None = None, **flags: object) -> Loaded:
    """The settings in force; flags that are None count as not given. Raises SettingError with the remedy."""
    given = {name: str(flag) if isinstance(flag, Path) else flag for name, flag in flags.items()}
    return load(given, os.environ, find_file(config))
