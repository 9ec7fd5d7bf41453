"""`mainspring nodes`: who shares the log, and who serves what."""

from __future__ import annotations

from typing import Any

from mainspring.cli.asking import TokenOption, UrlOption, node
from mainspring.cli.ending import ends_cleanly
from mainspring.cli.moments import date_text
from mainspring.cli.showing import JsonOption, safe, say_json, table


@ends_cleanly
def nodes(url: UrlOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """Everybody on the log of the node that is asked: name, epoch, address, version, roles, and who serves what.

    A node that was killed is listed until its lease is over; when it was last heard tells.
    """
    with node(url, token) as connection:
        found: list[dict[str, Any]] = connection.get("/nodes")["nodes"]
    if as_json:
        for each in found:
            say_json(each)
        return
    table(
        ("node", ">epoch", "address", "since", "heard", "version", "roles", "serves"),
        (
            (
                safe(each["name"]) + (" (asked)" if each["here"] else ""),
                each["epoch"],
                safe(each["address"]),
                date_text(each["since"]) if each["since"] else "",
                "" if each["here"] else f"{each['silent_ms'] // 1000} s ago",
                safe(each["version"]),
                safe(" ".join(each["roles"])),
                safe(" ".join(handled.partition(":")[2] for handled in each["serves"])),
            )
            for each in found
        ),
        empty="nobody",
    )


__all__ = ["nodes"]
