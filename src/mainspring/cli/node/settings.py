"""`mainspring settings`: every setting, its value and where the value came from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.support.output import say_json
from mainspring.settings import FILE_NAME, Description, describe, load_all, without_secrets

PAGE_HEAD = (
    "# Settings",
    "",
    "A flag of `mainspring serve` beats the environment, the environment beats the file (`mainspring.toml` in the",
    "working directory, or the one `--config` or `MAINSPRING_CONFIG` names), the file beats the default. A name nobody",
    "knows and a value that does not fit are errors. `mainspring settings` shows the values in force and where each",
    "came from; `mainspring settings --markdown` made this page.",
    "",
    "| setting | type | default | unit | environment | what it does |",
    "|---|---|---|---|---|---|",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help=f"TOML file with settings.  [default: ./{FILE_NAME}, if it exists]")
]


def page() -> str:
    """The reference page of the settings."""
    rows = [
        f"| `{one.name}` | {one.type} | `{_shown(one.default)}` | {one.unit} | {_variables(one)} | {one.help} |"
        for one in describe()
    ]
    return "\n".join([*PAGE_HEAD, *rows, ""])


def _variables(one: Description) -> str:
    return " or ".join(f"`{name}`" for name in (one.env, one.alias) if name)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _safe(value: object) -> object:
    """Settings are shown to people, who look over each other's shoulders: no passwords in addresses."""
    return without_secrets(value) if isinstance(value, str) else value


def settings(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per setting.")] = False,
    as_page: Annotated[
        bool, typer.Option("--markdown", help="The reference page: names and defaults, no values.")
    ] = False,
) -> None:
    """Show every setting and its value. Where the value came from, its name in the environment, what it does."""
    if as_page:
        typer.echo(page(), nl=False)
        return
    loaded = load_all(config)
    rows = [
        {"value": _safe(getattr(loaded.settings, one.name)), "source": loaded.sources[one.name], **asdict(one)}
        for one in describe()
    ]
    if as_json:
        for row in rows:
            say_json(row)
        return
    # Two lines each: in a table of five columns names and values would be cut off on most screens.
    for row in rows:
        value = _shown(row["value"]) or "(empty)"
        unit = f" {row['unit']}" if row["unit"] else ""
        typer.echo(f"{row['name']}: {value}{unit}  [{row['source']}, {row['env']}]")
        typer.echo(f"    {row['help']}")
