"""Where the node is and who is asking: the options every command that talks to a node has.

`--url` beats `BUS_URL`, which beats the settings file. A token is better given as `BUS_TOKEN` than as an option: the
arguments of a process can be read by everybody on the machine. Names of topics and groups complete in the shell by
asking the node, with little patience and in silence: a shell that hangs or prints at Tab is worse than no completion.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from mainspring.cli.support.options import TokenOption, UrlOption
from mainspring.cli.support.settings import load_all
from mainspring.client import NodeConnection, path
from mainspring.errors import MainspringError

_TAB_PATIENCE_S: Final = 1.0

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def node_url(url: str | None) -> str:
    """The address to use."""
    return url if url is not None else load_all().settings.bus_url


def node(url: str | None, token: str | None) -> NodeConnection:
    """A connection to the node; nothing is sent yet."""
    return NodeConnection(node_url(url), token)


@dataclass(frozen=True)
class NodeOptions:
    """Where the node is and who asks."""

    url: UrlOption = None
    token: TokenOption = None

    @property
    def address(self) -> str:
        return node_url(self.url)

    def connect(self) -> NodeConnection:
        """A connection to the node; nothing is sent yet."""
        return node(self.url, self.token)


def confirm(question: str, yes: bool) -> None:
    """Ask a person at a terminal; a script has decided already."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(question, abort=True)


# -- completion


def _asked(context: Any) -> NodeConnection:
    given = context.params
    return NodeConnection(node_url(given.get("url")), given.get("token"), patience_s=_TAB_PATIENCE_S)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin so."""
    try:
        with _asked(ctx) as connection:
            found = connection.get("/topics", prefix=incomplete or None)
    except (MainspringError, OSError):
        return []
    return [each["topic"] for each in found["topics"]]


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups of the topic that was already typed, or of all."""
    try:
        with _asked(ctx) as connection:
            found = connection.get("/groups", topic=ctx.params.get("topic"))
    except (MainspringError, OSError):
        return []
    return sorted({each["group"] for each in found["groups"] if each["group"].startswith(incomplete)})


TopicArgument = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]
GroupArgument = Annotated[str, typer.Argument(help="The group.", autocompletion=complete_group)]

__all__ = [
    "GroupArgument",
    "NodeOptions",
    "TopicArgument",
    "YesOption",
    "confirm",
    "node",
    "node_url",
    "path",
]
