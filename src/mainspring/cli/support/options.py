"""Options that go together are declared once, as the fields of a dataclass, and given to a command as one parameter.

Typer reads one option from each parameter of a function, so commands that share four options would each repeat four
parameters, and in time say four slightly different things. Here a command takes, say, `at: NodeOptions`; for Typer the
parameter is spread out into the fields of that class, and the command gets them back as one value, which also knows
what to do with them. On the command line and in the help nothing of this is seen.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from mainspring.settings import FILE_NAME, TOKEN_VARIABLES, Loaded, without_secrets

# Here and not beside what uses them: a command that goes over a socket need not import an HTTP client first.
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The node's address, or several of one log with commas.  [default: MAINSPRING_URL, BUS_URL, ws://127.0.0.1:7070]",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar=list(TOKEN_VARIABLES), show_envvar=True, help="The token to ask with."),
]

R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """The command with each parameter that is a dataclass of options replaced by those options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not groups:
        return command

    @functools.wraps(command)
    def called(**given: Any) -> R:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    options = list(_options_of(command))
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in options}
    return called


def _options_of(made_by: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a command or a dataclass; those of a dataclass stand for the parameter it is the type of."""
    hints = get_type_hints(made_by, include_extras=True)
    for name, given in inspect.signature(made_by).parameters.items():
        if is_dataclass(hints[name]):
            yield from _options_of(hints[name])
        else:
            yield given.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])


def tidy(command: Any) -> Any:
    """The command with the names of its arguments in capitals, as usage lines have them everywhere."""
    for each in getattr(command, "commands", {}).values():
        tidy(each)
    for param in command.params:
        if param.metavar is None and param.param_type_name == "argument":
            param.metavar = str(param.name).upper()
    return command


class CommandGroup(TyperGroup):
    """Subcommands, of which the likely one is named when somebody mistypes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known:
            close = difflib.get_close_matches(args[0], known, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """A command with subcommands; without one it shows its help. Subcommands may take groups of options."""

    def __init__(self, help: str) -> None:
        super().__init__(cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=help)

    def command(self, *args: Any, **settings: Any) -> Callable[[C], C]:
        register = super().command(*args, **settings)

        def registered(command: C) -> C:
            register(spread(command))
            return command

        return registered


def token_for(loaded: Loaded, token: str | None) -> str | None:
    """The token to send to the settings' address: none of the environment, where a file that merely lies in the working
    directory says what the address is."""
    if not token or loaded.sources["url"] != "file" or os.environ.get("MAINSPRING_CONFIG"):
        return token
    if token not in (os.environ.get(name) for name in TOKEN_VARIABLES):
        return token  # typed by the person who typed the command
    address = without_secrets(loaded.settings.url)
    sys.stderr.write(
        f"mainspring: BUS_TOKEN is not sent to {address}, because only ./{FILE_NAME} says that the node is there\n"
        "  if it is, say so: with --url, with BUS_URL, or with MAINSPRING_CONFIG for the whole file\n"
    )
    return None
