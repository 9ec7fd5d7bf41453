"""`MAINSPRING` in the settings of the Django project."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mainspring.errors import SettingError
from mainspring.outbox import TABLE
from mainspring.settings import Settings


@dataclass(frozen=True, slots=True)
class DjangoSettings:
    """What `MAINSPRING` says."""

    app: str = ""  # MODULE:APP, what `manage.py mainspring` runs
    url: str | None = None  # where `client()` finds the node. None: the port below, on this machine
    token: str | None = None
    dashboard: str | None = None  # the address that the links of the admin lead to. None: that of the node
    table: str = TABLE  # of the outbox
    node: dict[str, Any] = field(default_factory=dict)  # settings of the node: everything else that is given

    def log_is_in(self, connection: Any) -> bool:
        """Whether the node's log is in the database of this connection: PostgreSQL, and the same name."""
        engine = urlsplit(str(self.node.get("engine", "")))
        same = engine.path.removeprefix("/") == str(connection.settings_dict["NAME"])
        return engine.scheme in ("postgresql", "postgres") and connection.vendor == "postgresql" and same

    @property
    def schema(self) -> str:
        """Of the log in PostgreSQL."""
        named = parse_qs(urlsplit(str(self.node.get("engine", ""))).query).get("schema")
        return named[0] if named else "mainspring"


def read_settings() -> DjangoSettings:
    """Raises SettingError for a name that nobody knows."""
    from django.conf import settings

    given: dict[str, Any] = dict(getattr(settings, "MAINSPRING", {}))
    own = {each.name for each in fields_of(DjangoSettings)} - {"node"}
    known = own | {each.name for each in fields_of(Settings)}
    for name in given.keys() - known:
        raise SettingError(
            f"MAINSPRING has an unknown setting {name!r}",
            remedy=f"choose from {', '.join(sorted(own))}, or from those of a node: `mainspring settings`",
        )
    node = {name: value for name, value in given.items() if name not in own}
    said = {name: value for name, value in given.items() if name in own}
    address = f"{node.get('host', '127.0.0.1')}:{node.get('port', Settings().port)}"
    said["url"] = said.get("url") or f"ws://{address}"
    said["dashboard"] = (said.get("dashboard") or f"http://{address}").rstrip("/")
    return DjangoSettings(**said, node=node)
