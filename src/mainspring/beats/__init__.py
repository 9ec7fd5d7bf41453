"""Beats: signals, enzymes, and a heartbeat that makes what they do visible one beat later.

- `heartbeat`: a line of beats: signals in, beats, reading; also its access to a line of its own
- `beat`: one beat in the making, from inbox to report, without input or output of its own
- `stage`: what one call of an enzyme may see and do
- `calls`: calling an enzyme, on a loop or without one; `parallel` calls several side by side
- `state`: what a line is at one moment, in memory
- `report`: what a beat says about itself
- `driver`: when beats run: at an interval, when work arrives
- `inlets`: signals from topics
- `lineage`: which message or event a signal comes from, for log lines and spans
- `program`: what a program declares
- `rules`: budgets, retries, and what a fatal result means
- `errors`: what beats refuse
- `matching/`: from a signal and a target to the enzymes that run, in order
- `storage/`: how a line is stored: cells, journals, records of the log
- `history/`: reading, replaying and forking beats that happened
- `shared/`: a line that several nodes share
"""

from __future__ import annotations

from mainspring.beats.driver import Driver
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.history.replay import Divergence, Replay
from mainspring.beats.inlets import Inlet, Taken, TopicInlet
from mainspring.beats.program import BeatsProgram, DeclaredInlet, TargetOf
from mainspring.beats.report import AgendaEntry, BeatReport, Diagnostic, Emitted, Staged
from mainspring.beats.shared.line import BEATS_ROLE
from mainspring.beats.stage import FATAL, RETRY, Stage

__all__ = [
    "BEATS_ROLE",
    "FATAL",
    "RETRY",
    "AgendaEntry",
    "BeatReport",
    "BeatsProgram",
    "DeclaredInlet",
    "Diagnostic",
    "Divergence",
    "Driver",
    "Emitted",
    "Heartbeat",
    "Inlet",
    "Replay",
    "Stage",
    "Staged",
    "Taken",
    "TargetOf",
    "TopicInlet",
]
