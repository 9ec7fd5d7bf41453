"""Filters of `mainspring tail`: `key=c-17`, `header.ct=json`, `.order.total>=100`, `.items[0].sku!=7`.

A path that begins with a dot leads into the payload, as in jq. `=` and `!=` compare; `~` means "contains"; `<`, `>`,
`<=`, `>=` compare numbers with numbers and texts with texts. The value is JSON where it can be read as such, otherwise
text. A path that leads nowhere fits no filter but `!=`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final

import typer

from mainspring.json_text import JsonRefused, read_value

Envelope = dict[str, Any]
Fits = Callable[[Envelope], bool]

_FILTER: Final = re.compile(
    r"(?P<what>key|topic|id|header\.[^=!<>~]+|\.[^=!<>~]*)(?P<how>!=|<=|>=|=|<|>|~)(?P<value>.*)\Z", re.S
)
_STEP: Final = re.compile(r'\.?([^.\[\]"]+)|\.?"([^"]*)"|\.?\[(\d+)\]')
_NOWHERE: Final = object()


def parse_filter(text: str) -> Fits:
    """What the text asks for, as a function. A usage error shows how one is written."""
    match = _FILTER.match(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no filter; write key=VALUE, header.NAME=VALUE or .path.in.payload=VALUE (or != < > <= >= ~)",
            param_hint="--filter",
        )
    find, compare = _finder(match["what"]), _COMPARISONS[match["how"]]
    wanted = [match["value"]] if not match["what"].startswith(".") else _readings(match["value"])
    negative = match["how"] == "!="

    def fits(envelope: Envelope) -> bool:
        found = find(envelope)
        if found is _NOWHERE:
            return negative
        tested = [compare(found, each) for each in wanted]
        return all(tested) if negative else any(tested)

    return fits


def _readings(text: str) -> list[Any]:
    """The value as JSON, and as text when that is something else: `.zip=01234` and `.sku=7` both work unquoted."""
    try:
        value = read_value(text, "the value")
    except JsonRefused:
        return [text]
    return [value] if isinstance(value, str) else [value, text]


def _finder(what: str) -> Callable[[Envelope], Any]:
    if what.startswith("header."):
        name = what.removeprefix("header.")
        return lambda envelope: (envelope.get("headers") or {}).get(name, _NOWHERE)
    if not what.startswith("."):
        return lambda envelope: envelope.get(what, _NOWHERE)
    steps = _steps(what)

    def walk(envelope: Envelope) -> Any:
        at = envelope["payload"]
        for step in steps:
            if isinstance(step, int):
                at = at[step] if isinstance(at, list) and step < len(at) else _NOWHERE
            else:
                at = at.get(step, _NOWHERE) if isinstance(at, dict) else _NOWHERE
        return at

    return walk


def _steps(path: str) -> list[str | int]:
    """`.items[0].sku` as its steps; `.` alone is the payload itself."""
    steps: list[str | int] = []
    at = 0
    while path != "." and at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise typer.BadParameter(f"{path!r} is no path; write .items[0].sku", param_hint="--filter")
        name, quoted, index = match.groups()
        steps.append(int(index) if index is not None else name if name is not None else quoted)
        at = match.end()
    return steps


def _same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(found, str):
        return str(wanted) in found
    return isinstance(found, list | dict) and wanted in found


def _ordered(order: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Numbers with numbers, texts with texts; True and False are neither."""

    def compare(found: Any, wanted: Any) -> bool:
        both = (found, wanted)
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in both)
        return (numbers or all(isinstance(each, str) for each in both)) and order(found, wanted)

    return compare


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": _same,
    "!=": lambda found, wanted: not _same(found, wanted),
    "~": _contains,
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
    "<=": _ordered(operator.le),
    ">=": _ordered(operator.ge),
}
