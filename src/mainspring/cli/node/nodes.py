"""`mainspring nodes`: who shares the log, and who serves what."""

from __future__ import annotations

from typing import Any

from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import NodeOptions
from mainspring.cli.support.output import JsonOption, listing


def nodes(at: NodeOptions, as_json: JsonOption = False) -> None:
    """List the nodes that share a log. Name, address, version, roles, and who serves what.

    A node that was killed is listed until its lease is over; when it was last heard tells.
    """
    with at.connect() as connection:
        found: list[dict[str, Any]] = connection.get("/nodes")["nodes"]
    listing(
        found,
        as_json,
        ("node", ">epoch", "address", "since", "heard", "version", "roles", "serves"),
        lambda each: (
            each["name"] + (" (asked)" if each["here"] else ""),
            each["epoch"],
            each["address"],
            date_text(each["since"]) if each["since"] else "",
            "" if each["here"] else f"{each['silent_ms'] // 1000} s ago",
            each["version"],
            " ".join(each["roles"]),
            " ".join(handled.partition(":")[2] for handled in each["serves"]),
        ),
        empty="nobody",
    )


__all__ = ["nodes"]
