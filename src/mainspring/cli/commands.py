"""All commands of `mainspring`, each in its own module and imported only when it is asked for.

So `mainspring pub` does not pay for the tables and progress bars of the others.
"""

from __future__ import annotations

import functools
import gc
import importlib
from typing import Annotated, Any, Final

import typer

from mainspring.cli.support.options import CommandGroup, Commands, tidy
from mainspring.cli.support.output import clean_ending

# name -> module of this package and attribute: a function, or a Typer app with subcommands of its own
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "new": ("node.new", "new"),
    "serve": ("node.serve", "serve"),
    "run": ("program.kernel", "run"),
    "send": ("program.kernel", "send"),
    "describe": ("program.kernel", "describe"),
    "trace": ("program.kernel", "trace"),
    "actors": ("program.kernel", "actors"),
    "dead-messages": ("program.kernel", "dead_messages"),
    "mcp": ("program.mcp", "mcp"),
    "decode": ("program.codec", "decode"),
    "doctor": ("node.doctor", "doctor"),
    "attention": ("node.status", "attention"),
    "history": ("node.status", "history"),
    "nodes": ("node.engine", "nodes"),
    "engine": ("node.engine", "app"),
    "runs": ("program.runs", "app"),
    "beats": ("program.beats", "app"),
    "log": ("node.log", "app"),
    "pub": ("bus.pub", "pub"),
    "sub": ("bus.sub", "sub"),
    "tail": ("bus.tail", "tail"),
    "topics": ("bus.topics", "app"),
    "groups": ("bus.groups", "app"),
    "dlq": ("bus.dlq", "app"),
    "schedules": ("bus.schedules", "app"),
    "tasks": ("bus.tasks", "app"),
    "outbox": ("bus.outbox", "app"),
    "outgoing": ("program.outgoing", "app"),
    "top": ("node.top", "top"),
    "demo": ("node.demo", "demo"),
    "worker": ("bus.worker", "worker"),
    "guest": ("program.guest", "guest"),
    "schemas": ("bus.schemas", "app"),
    "token": ("bus.token", "app"),
    "settings": ("node.settings", "settings"),
    "shell": ("program.shell", "shell"),
}


@functools.cache
def _command(name: str) -> Any:
    """The command of this name, made when it is first asked for; `mainspring shell` asks again and again."""
    module, attribute = COMMANDS[name]
    # Importing makes what stays; looking for garbage meanwhile would take an eighth of the time.
    gc.disable()
    try:
        found = getattr(importlib.import_module(f"mainspring.cli.{module}"), attribute)
    finally:
        gc.enable()
    if isinstance(found, typer.Typer):
        group = typer.main.get_command(found)
    else:
        alone = Commands("")
        alone.command(name)(found)
        group = typer.main.get_command(alone)
    group.name = name
    return tidy(group)


class LazyCommands(CommandGroup):
    """Finds subcommands in COMMANDS, imports the one that is needed, and sees to how it ends."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        with clean_ending():
            return super().invoke(ctx)


app: typer.Typer = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="One event runtime: commands, events, timers, effects and beats on one loop and one durable log.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"mainspring {version('mainspring')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def root(version: VersionOption = False) -> None:
    del version
