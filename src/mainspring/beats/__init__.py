"""Beats: signals, enzymes, and a heartbeat that makes what they do visible one beat later."""

from __future__ import annotations

from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.inlet import Inlet, Taken, TopicInlet
from mainspring.beats.report import AgendaEntry, Diagnostic, Emitted, Report, Staged
from mainspring.beats.stage import FATAL, RETRY, Stage

__all__ = [
    "FATAL",
    "RETRY",
    "AgendaEntry",
    "Diagnostic",
    "Emitted",
    "Heartbeat",
    "Inlet",
    "Report",
    "Stage",
    "Staged",
    "Taken",
    "TopicInlet",
]
