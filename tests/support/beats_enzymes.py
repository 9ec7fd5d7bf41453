"""Enzymes that another process can import."""

from __future__ import annotations

import os
from typing import Any

from mainspring.beats import RETRY


def count(signal: str, target: str | None, stage: Any) -> int | None:
    seen = stage.read("/total") or 0
    stage.write(f"/seen{signal}", {"seen": seen, "beat": stage.beat, "third": seen / 3})
    stage.write("/total", seen + 1)
    if signal.endswith("7"):
        stage.signal("/sig/emitted", beat=stage.beat + 2)
    if signal.endswith("3"):
        raise ValueError("no good")
    return RETRY if signal.endswith("5") and stage.attempt == 1 else None


def log(signal: str, target: str | None, stage: Any) -> None:
    stage.write(f"/logged{signal}", stage.own(f"/logged{signal}"))
    stage.write(f"/stored{signal}", stage.store([signal] * 5))


def die(signal: str, target: str | None, stage: Any) -> None:
    os._exit(3)
