"""`mainspring outgoing`: what programs published in their own transactions on PostgreSQL and the node refused."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring.cli.support.messages import WireOptions
from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import ChosenIds, YesOption, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import safe, say, say_done, say_json, short

app: typer.Typer = Commands("List, retry and drop what transactions published in vain.")

JsonOption = Annotated[bool, typer.Option("--json", help="The answer as it came: one JSON line.")]


@app.command("list")
def list_outgoing(*, node: WireOptions, as_json: JsonOption = False) -> None:
    """List what was refused when the node moved it into the log. Oldest first.

    An event of a topic whose schema refuses it, a run whose arguments do not fit its program: their transactions are
    committed, and nothing else was held up.
    """
    after = ""
    while found := node.ask("Bus.RefusedOutgoing", {"after": after}, "query")["refused"]:
        for each in found:
            if as_json:
                say_json(each)
            else:
                when = date_text(each["at"]) if each["at"] else ""
                say(safe(f"{each['id']}  {when:19}  {each['name']:24}  {short(each['reason'], 100)}"))
        after = found[-1]["id"]


@app.command()
def retry(*, chosen: ChosenIds, node: WireOptions, as_json: JsonOption = False) -> None:
    """Try again what was refused. What is refused again stays in the list.

    Example: `outgoing retry --all`.
    """
    found = node.ask("Bus.RetryOutgoing", chosen.wanted())
    say_done(found, as_json, f"{found['count']} are tried again")


@app.command()
def drop(*, chosen: ChosenIds, yes: YesOption = False, node: WireOptions, as_json: JsonOption = False) -> None:
    """Drop what was refused. It is never published."""
    wanted = chosen.wanted()
    confirm(f"Drop {chosen} of what was refused for good?", yes)
    found = node.ask("Bus.DropOutgoing", wanted)
    say_done(found, as_json, f"dropped {found['count']}")
