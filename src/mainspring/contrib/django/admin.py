"""The outbox in the admin, to look at; with links to the dead letters and runs on the node's dashboard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib.admin import site

from mainspring.contrib.django.conf import read_settings
from mainspring.contrib.django.models import OutboxEvent

if TYPE_CHECKING:
    ModelAdmin = object  # Django has no types of its own
else:
    from django.contrib.admin import ModelAdmin


class OutboxEventAdmin(ModelAdmin):
    """Nothing can be changed here: a row belongs to the transaction that wrote it."""

    list_display: tuple[str, ...] = ("topic", "event_key", "state", "attempts", "added", "error")
    list_filter: tuple[str, ...] = ("state", "topic")
    search_fields: tuple[str, ...] = ("id", "topic", "event_key")
    change_list_template: str = "admin/mainspring_outbox/change_list.html"

    def added(self, event: Any) -> datetime:
        """When, for people."""
        return datetime.fromtimestamp(event.created_ms / 1000, UTC)

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        """The list, with the links."""
        dashboard = read_settings().dashboard
        links = [(name, f"{dashboard}/#/{view}") for name, view in (("Dead letters", "deadletters"), ("Runs", "runs"))]
        view: Any = super()
        return view.changelist_view(request, {**(extra_context or {}), "mainspring_links": links})

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


site.register(OutboxEvent, OutboxEventAdmin)
