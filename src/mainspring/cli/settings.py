"""`mainspring settings`: every setting, its value and where the value came from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from mainspring.settings import FILE_NAME, Loaded, describe, load

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help=f"TOML file with settings. Default: ./{FILE_NAME} when it exists.")
]


def find_file(config: Path | None) -> Path | None:
    """The file to read: the one named, the one the environment names, or the usual one where it exists."""
    if config is not None:
        return config
    if named := os.environ.get("MAINSPRING_CONFIG"):
        return Path(named)
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None


def load_all(config: Path | None = None, **flags: object) -> Loaded:
    return load(flags, os.environ, find_file(config))


def settings(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per setting.")] = False,
) -> None:
    """Show every setting with its value, where it came from, its environment name and what it does."""
    loaded = load_all(config)
    rows = [
        {
            "name": one.name,
            "value": getattr(loaded.settings, one.name),
            "source": loaded.sources[one.name],
            "default": one.default,
            "unit": one.unit,
            "type": one.type,
            "env": one.env,
            "help": one.help,
        }
        for one in describe()
    ]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "from", "environment", "what it does", box=None, pad_edge=False)
    for row in rows:
        value = ", ".join(row["value"]) if isinstance(row["value"], tuple) else str(row["value"])
        unit = f" {row['unit']}" if row["unit"] and value else ""
        table.add_row(str(row["name"]), value + unit, str(row["source"]), str(row["env"]), str(row["help"]))
    Console().print(table)
