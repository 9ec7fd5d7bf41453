"""Where the node is and who is asking: the options every command that talks to a node has.

`--url` beats `BUS_URL`, which beats the settings file. A token is better given as `BUS_TOKEN` than as an option: the
arguments of a process can be read by everybody on the machine. But `BUS_TOKEN` is not sent to an address that only a
settings file of the working directory names: whoever wrote that file would get the token of whoever enters the folder.
Names of topics and groups complete in the shell by asking the node, with little patience and in silence: a shell that
hangs or prints at Tab is worse than no completion.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from mainspring.cli.support.options import TokenOption, UrlOption, token_for
from mainspring.cli.support.output import JsonOption
from mainspring.client import PATIENCE_S, NodeConnection
from mainspring.errors import MainspringError
from mainspring.settings import load_all

_TAB_PATIENCE_S: Final = 1.0

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class NodeAddress:
    """Where the node is and who asks."""

    url: UrlOption = None
    token: TokenOption = None

    @property
    def address(self) -> str:
        return self.url if self.url is not None else load_all().settings.url

    @property
    def sent_token(self) -> str | None:
        """The token, unless it must not go to the address."""
        return self.token if self.url is not None else token_for(load_all(), self.token)

    def connect(self, patience_s: float = PATIENCE_S) -> NodeConnection:
        """A connection to the node; nothing is sent yet."""
        return NodeConnection(self.address, self.sent_token, patience_s=patience_s)


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
    """Ask a person at a terminal; a script has decided already."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(question, abort=True)


def confirm_by_name(question: str, name: str, yes: bool) -> None:
    """Have a person at a terminal type the name of what will be gone; a script has decided already."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typed = typer.prompt(f"{question} Type its name to go on", default="", show_default=False)
        if typed != name:
            raise typer.Abort


def _offered(context: typer.Context, kind: str, **params: str | None) -> list[dict[str, Any]]:
    """The topics or groups that the node knows; none where it does not answer."""
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


TopicArgument = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]
GroupArgument = Annotated[str, typer.Argument(help="The group.", autocompletion=complete_group)]
