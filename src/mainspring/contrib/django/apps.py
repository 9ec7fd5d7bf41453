"""What `INSTALLED_APPS` finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    AppConfig = object  # Django has no types of its own
else:
    from django.apps import AppConfig


class MainspringConfig(AppConfig):
    """The app `mainspring.contrib.django`."""

    name: str = "mainspring.contrib.django"
    label: str = "mainspring_outbox"
    verbose_name: str = "Mainspring"
    default_auto_field: str = "django.db.models.BigAutoField"
