"""Query parameters, read strictly: a misspelt or doubled one is told, never ignored.

Which parameters an operation knows is written in the route table. `agent_id` and `token` are known everywhere, because
they say who asks and not what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from aiohttp import web

from mainspring.server.http.problem import bad_query

ALWAYS_KNOWN: Final = frozenset({"agent_id", "token"})
MAX_INTEGER: Final = 2**53 - 1  # beyond it, JavaScript readers lose digits
_INTEGER: Final = re.compile(r"\d{1,16}\Z", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


def check_names(request: web.Request, known: Iterable[str]) -> None:
    """Refuse parameters the operation does not know, and known ones given twice."""
    names = {*known, *ALWAYS_KNOWN}
    for name in request.query:
        if name not in names:
            raise bad_query(
                f"The parameter {name[:60]!r} is not known here.", f"Known are: {', '.join(sorted(names))}."
            )
    for name in names:
        if len(request.query.getall(name, ())) > 1:
            raise bad_query(f"The parameter {name!r} is given twice.", "Give it once.")


def integer(request: web.Request, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int | None:
    """A whole number, or None when it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    value = int(text) if _INTEGER.match(text) else -1
    if not least <= value <= most:
        raise bad_query(f"{name} is not a whole number from {least} to {most}.", "Write it in decimal digits.")
    return value


def moment_ms(request: web.Request, name: str) -> int | None:
    """A moment as epoch milliseconds, given as such or as RFC 3339 text; None when it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    if _INTEGER.match(text):
        return min(int(text), MAX_INTEGER)
    # A plus sign in a query means a space; who wrote the offset unescaped meant the plus.
    written = text.replace(" ", "+").upper()
    if _MOMENT.match(written):
        try:
            return round(datetime.fromisoformat(written).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
    raise bad_query(f"{name} is not a moment.", "Write epoch milliseconds, or a time as in 2026-01-31T12:00:00Z.")


def path_integer(request: web.Request, name: str) -> int:
    """A number in the path."""
    text = request.match_info[name]
    if not _INTEGER.match(text):
        raise bad_query(f"{name} in the path is not a whole number.", "Write it in decimal digits.")
    return min(int(text), MAX_INTEGER)
