"""Beats: signals, enzymes, and a heartbeat that makes what they do visible one beat later."""

from __future__ import annotations

from mainspring.beats.driver import Driver
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.history.replay import Divergence, Replay
from mainspring.beats.history.report import AgendaEntry, Diagnostic, Emitted, Report, Staged
from mainspring.beats.inlets import Inlet, Taken, TopicInlet
from mainspring.beats.program import BeatsProgram
from mainspring.beats.shared.heartbeat import SharedHeartbeat
from mainspring.beats.stage import FATAL, RETRY, Stage

__all__ = [
    "FATAL",
    "RETRY",
    "AgendaEntry",
    "BeatsProgram",
    "Diagnostic",
    "Divergence",
    "Driver",
    "Emitted",
    "Heartbeat",
    "Inlet",
    "Replay",
    "Report",
    "SharedHeartbeat",
    "Stage",
    "Staged",
    "Taken",
    "TopicInlet",
]
