"""The process: which version runs on which Python, how much it uses, and whether the node is ready."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from mainspring.server.health import readiness
from mainspring.server.metrics.families import PREFIX, gauge
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


def register(registry: CollectorRegistry) -> None:
    """The usual numbers of a process (processor time, memory, descriptors) and of its Python."""
    from prometheus_client import PlatformCollector, ProcessCollector

    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)


def families(observed: Observed) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    yield InfoMetricFamily(f"{PREFIX}build", "The running version.", value={"version": version("mainspring")})
    yield gauge("ready", "1 while the node takes requests.", readiness(observed).ready)
