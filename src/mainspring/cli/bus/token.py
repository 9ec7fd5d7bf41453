"""`mainspring token`: make tokens, list the ones a node knows, and see what one may do.

A token is printed once, on standard output, with the line a node needs to know it; the line holds only a hash. `check`
reads the token from standard input or asks for it, because arguments are seen by everybody on the machine and stay in
the history of the shell.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from mainspring.bus import origin_of
from mainspring.bus.access import (
    SECRET_BYTES,
    Token,
    TokenBook,
    certificate_token,
    lifetime_ms,
    moment_text,
    new_token,
    read_tokens,
)
from mainspring.cli.node.settings import ConfigOption
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, listing, note, say, say_json
from mainspring.errors import SettingError
from mainspring.loop import MonotonicClock
from mainspring.settings import load_all

app: typer.Typer = Commands("Make, list and check tokens.")


@app.command()
def new(
    agent: Annotated[str, typer.Option(help="Who the bearer is.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="admin, or publish:, subscribe:, group:, query:, command: or run: and a pattern; may be repeated."
        ),
    ],
    certificate: Annotated[
        str | None,
        typer.Option(help="For a client with this certificate, e.g. DNS=billing.example.com: no token is made."),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="How long it lasts: 12h, 30d, 8w.  [default: for ever]")] = None,
    file: Annotated[Path | None, typer.Option(help="Also add its line to this file (the node's tokens_file).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token. It is shown this once; the node keeps only its hash."""
    expires_ms = MonotonicClock().wall_ms() + lifetime_ms(expires) if expires else 0
    shown: dict[str, object] = {}
    if certificate is not None:
        token = certificate_token(agent, scope, certificate, expires_ms)
    else:
        shown["token"], token = new_token(agent, scope, secrets.token_bytes(SECRET_BYTES), expires_ms)
    if file is not None:
        _add_line(file, token.line())
    shown["line"] = token.line()
    if as_json:
        say_json({**shown, **_shown(token)})
        return
    for name, text in shown.items():
        say(f"{name:5}  {text}")
    _say_what_to_do(token, file)


def _say_what_to_do(token: Token, file: Path | None) -> None:
    if file is not None:
        note(f"The line is in {file}; a node with tokens_file = {str(file)!r} knows it in a moment.")
    else:
        note(
            ("" if token.certificate else "Give the token to the client; it is not shown again. ")
            + "Give the line to the node: in mainspring.toml as\n"
            f'  tokens = ["{token.line()}"]\n'
            "or in MAINSPRING_TOKENS (several with commas between), or as a line of its tokens_file."
        )


@app.command(name="list")
def list_tokens(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the tokens the settings name. Who they are for, what they may do, until when."""
    book, now = _book(config), MonotonicClock().wall_ms()
    if not book and not as_json:
        say("There are no tokens: only this machine may connect, and everybody on it may do everything.")
        return
    listing(
        [{**_shown(token), "expired": token.expired(now)} for token in book.tokens],
        as_json,
        ("id", "agent", "scopes", "expires"),
        lambda each: (
            each["id"],
            each["agent"],
            " ".join(each["scopes"]),
            each.get("expires", "never") + (" (expired)" if each["expired"] else ""),
        ),
    )


@app.command()
def check(
    publish: Annotated[str | None, typer.Option(help="May it publish to this topic?")] = None,
    subscribe: Annotated[str | None, typer.Option(help="May it subscribe to this topic?")] = None,
    group: Annotated[str | None, typer.Option(help="May it join, move and delete this group of others?")] = None,
    query: Annotated[str | None, typer.Option(help="May it ask this query, like Memory.Get?")] = None,
    command: Annotated[str | None, typer.Option(help="May it send this command, like Pay.Refund?")] = None,
    run: Annotated[str | None, typer.Option(help="May it start, signal and read runs of this program?")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a token may do. Reads it from standard input; the access lists of topics are not asked.

    Exit code 1: not known, expired, or not allowed.
    """
    text = typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = _book(config).find(text.strip(), MonotonicClock().wall_ms())
    asked = {
        "publish": None if publish is None else origin_of(publish),
        "subscribe": None if subscribe is None else origin_of(subscribe),
        "group": group,
        "query": query,
        "command": command,
        "run": run,
    }
    answers = {
        f"{action}:{name}": token is not None and token.scopes.allow(action, name)
        for action, name in asked.items()
        if name is not None
    }
    if as_json:
        shown = {} if token is None else _shown(token)
        say_json({"known": token is not None, **shown, "allowed": answers})
    elif token is None:
        say("The settings know no such token, or it has expired.")
    else:
        end = f"until {moment_text(token.expires_ms)}" if token.expires_ms else "for ever"
        say(f"{token.id}: {token.agent}, {token.scopes}, {end}")
        for question, allowed in answers.items():
            say(f"{question}: {'yes' if allowed else 'no'}")
    if token is None or not all(answers.values()):
        raise typer.Exit(1)


def _book(config: Path | None) -> TokenBook:
    settings = load_all(config).settings
    return read_tokens(settings.tokens, settings.tokens_file)


def _shown(token: Token) -> dict[str, object]:
    end = {"expires": moment_text(token.expires_ms)} if token.expires_ms else {}
    return {"id": token.id, "agent": token.agent, "scopes": token.scopes.names, **end}


def _add_line(file: Path, line: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as out:
            out.write(line + "\n")
    except OSError as error:
        raise SettingError(f"cannot write {file}: {error.strerror}", remedy="name a file you may write") from None
