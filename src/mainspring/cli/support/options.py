"""Options that go together are declared once, as the fields of a dataclass, and given to a command as one parameter.

Typer reads one option from each parameter of a function, so commands that share four options would each repeat four
parameters, and in time say four slightly different things. Here a command takes, say, `at: NodeOptions`; for Typer the
parameter is spread out into the fields of that class, and the command gets them back as one value, which also knows
what to do with them. On the command line and in the help nothing of this is seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

# Here and not beside what uses them: a command that goes over a socket need not import an HTTP client first.
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="The node's address, or several of one log with commas.  [default: BUS_URL, ws://127.0.0.1:7070]"
    ),
]
TokenOption = Annotated[
    str | None, typer.Option("--token", envvar="BUS_TOKEN", show_envvar=True, help="The token to ask with.")
]

R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """The command with each parameter that is a dataclass of options replaced by those options."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    if not groups:
        return command
    options: list[inspect.Parameter] = []
    for name, given in inspect.signature(command).parameters.items():
        if name in groups:
            options.extend(_options_of(groups[name]))
        else:
            options.append(inspect.Parameter(name, _BY_NAME, default=given.default, annotation=hints[name]))

    @functools.wraps(command)
    def called(**given: Any) -> R:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in options}
    return called


_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            _BY_NAME,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(kind)
    ]


def tidy(command: Any) -> Any:
    """The command with the names of its arguments in capitals, as usage lines have them everywhere."""
    for each in getattr(command, "commands", {}).values():
        tidy(each)
    for param in command.params:
        if param.metavar is None and param.param_type_name == "argument":
            param.metavar = str(param.name).upper()
    return command


class Commands(typer.Typer):
    """A command with subcommands; without one it shows its help. Subcommands may take groups of options."""

    def __init__(self, help: str) -> None:
        super().__init__(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=help)

    def command(self, *args: Any, **settings: Any) -> Callable[[C], C]:
        register = super().command(*args, **settings)

        def registered(command: C) -> C:
            register(spread(command))
            return command

        return registered
