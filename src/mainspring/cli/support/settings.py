"""Where the settings of a command come from: its flags, the environment, and a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mainspring.settings import FILE_NAME, Loaded, load, without_secrets


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


def token_for(loaded: Loaded, token: str | None) -> str | None:
    """The token to send to the settings' address: none of the environment, where a file that merely lies in the working
    directory says what the address is."""
    if not token or loaded.sources["bus_url"] != "file" or os.environ.get("MAINSPRING_CONFIG"):
        return token
    if token != os.environ.get("BUS_TOKEN"):
        return token  # typed by the person who typed the command
    address = without_secrets(loaded.settings.bus_url)
    sys.stderr.write(
        f"mainspring: BUS_TOKEN is not sent to {address}, because only ./{FILE_NAME} says that the node is there\n"
        "  if it is, say so: with --url, with BUS_URL, or with MAINSPRING_CONFIG for the whole file\n"
    )
    return None
