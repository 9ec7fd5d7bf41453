"""Where the node is and who is asking: the options every command that talks to a node has.

`--url` says where the node is; else `MAINSPRING_URL` or `BUS_URL`, else the settings file, else it is the node of the
data directory here, if one runs, which is asked through its socket and needs no token; else whatever is at the default
port. Errors say which it was. A token is better given as `BUS_TOKEN` than as an option: the arguments of a process can
be read by everybody on the machine. But `BUS_TOKEN` is not sent to an address that only a settings file of the working
directory names: whoever wrote that file would get the token of whoever enters the folder. Names of topics and groups
complete in the shell by asking the node, with little patience and in silence: a shell that hangs or prints at Tab is
worse than no completion.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mainspring.cli.support.options import FoundNode, TokenOption, UrlOption, find_node
from mainspring.cli.support.output import JsonOption
from mainspring.client import PATIENCE_S, NodeConnection
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from mainspring.client import Client

_TAB_PATIENCE_S: Final = 1.0

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class ChosenIds:
    """Which of a list are to be changed; all must be said."""

    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids, as `list` shows them.")] = None
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False

    def wanted(self) -> dict[str, Any]:
        """As the node is told."""
        if bool(self.ids) is self.everything:
            raise typer.BadParameter("say which: IDs, or --all")
        return {"all": True} if self.everything else {"ids": self.ids}

    def __str__(self) -> str:
        return "all" if self.everything else str(len(self.ids or ()))


@dataclass(frozen=True)
class NodeAddress:
    """Where the node is and who asks."""

    url: UrlOption = None
    token: TokenOption = None

    @functools.cached_property
    def found(self) -> FoundNode:
        """The node that is meant."""
        return find_node(self.url, self.token)

    def connect(self, patience_s: float = PATIENCE_S) -> NodeConnection:
        """A connection to the node; nothing is sent yet."""
        found = self.found
        return NodeConnection(
            found.url, found.token, patience_s=patience_s, unix_socket=found.unix_socket, named_by=found.named_by
        )

    def open_client(self, **options: Any) -> Client:
        """The same as a client of WebSockets, for `async with`."""
        from mainspring.client import connect  # only here: most commands ask one question

        return connect(self.found.url, self.found.token, unix_socket=self.found.unix_socket, **options)


@dataclass(frozen=True)
class NodeOptions(NodeAddress):
    """The same for a command that shows what the node answers, to people or as JSON."""

    as_json: JsonOption = False

    def get(self, path: str, **params: str | int | None) -> Any:
        """The decoded answer to one GET."""
        with self.connect() as connection:
            return connection.get(path, **params)

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The decoded answer to one request."""
        with self.connect() as connection:
            return connection.call(method, path, body)


def confirm(question: str, yes: bool) -> None:
    """Ask a person at a terminal, also one whose output goes elsewhere; a script has decided already."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def confirm_by_name(question: str, name: str, yes: bool) -> None:
    """Have a person at a terminal type the name of what will be gone; a script has decided already."""
    if not yes and sys.stdin.isatty():
        typed = typer.prompt(f"{question} Type its name to go on", default="", show_default=False, err=True)
        if typed != name:
            raise typer.Abort


def _offered(context: typer.Context, kind: str, **params: str | None) -> list[dict[str, Any]]:
    """The topics, groups, tasks or schedules that the node knows; none where it does not answer."""
    at = NodeAddress(context.params.get("url"), context.params.get("token"))
    try:
        with at.connect(_TAB_PATIENCE_S) as connection:
            found: list[dict[str, Any]] = connection.get(f"/{kind}", **params)[kind]
    except (MainspringError, OSError):
        return []
    return found


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin so."""
    return [each["topic"] for each in _offered(ctx, "topics", prefix=incomplete or None)]


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups of the topic that was already typed, or of all."""
    found = _offered(ctx, "groups", topic=ctx.params.get("topic"))
    return sorted({each["group"] for each in found if each["group"].startswith(incomplete)})


def complete_task(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tasks that begin so."""
    return [each["task"] for each in _offered(ctx, "tasks") if each["task"].startswith(incomplete)]


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Schedules that begin so."""
    return [each["name"] for each in _offered(ctx, "schedules") if each["name"].startswith(incomplete)]


TopicArgument = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]
GroupArgument = Annotated[str, typer.Argument(help="The group.", autocompletion=complete_group)]
