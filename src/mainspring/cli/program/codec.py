"""`mainspring decode`, and the codec that a command is told to use: that of a program, or one by itself."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from mainspring.app import App
from mainspring.cli.support.output import CommandFailed, SpeaksJsonOption
from mainspring.codec import BadCodec, Codec, Encoding
from mainspring.import_path import find_object

ProgramOfCodec = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The program whose codec is used, or a codec by itself.")
]


def find_encoding(place: str) -> Encoding:
    """The codec at `MODULE:NAME`, where an App or a codec is."""
    found: Any = find_object(place, "App or codec", "MODULE:APP, like shop:app")
    codec: Codec | None = found.codec if isinstance(found, App) else found
    if codec is None:
        raise CommandFailed(f"{place} has no codec", remedy="give it one: App(name, codec=...)")
    try:
        return Encoding(codec)
    except BadCodec as error:
        raise CommandFailed(f"{place}: {error.message}", remedy=error.remedy) from None


def decode(program: ProgramOfCodec, as_json: SpeaksJsonOption = True) -> None:
    """Decode what a codec has encoded in lines of JSON. Reads standard input.

    What the codec has no key for stays as it is. Example: `tail orders --json | mainspring decode shop:app`.
    """
    del as_json
    encoding = find_encoding(program)
    for line in sys.stdin.buffer:
        if line.strip():
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise CommandFailed(
                    "a line of standard input is not JSON", remedy="give the other command --json"
                ) from None
            sys.stdout.buffer.write(msgspec.json.encode(encoding.readable(value)) + b"\n")
            sys.stdout.buffer.flush()
