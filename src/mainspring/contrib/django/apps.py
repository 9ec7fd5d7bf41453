"""What `INSTALLED_APPS` finds."""

from __future__ import annotations

from django.apps import AppConfig


class MainspringConfig(AppConfig):
    """The app `mainspring.contrib.django`."""

    name = "mainspring.contrib.django"
    label = "mainspring_outbox"
    verbose_name = "Mainspring"
    default_auto_field = "django.db.models.BigAutoField"
