"""Beats: signals, enzymes, and a heartbeat that makes what they do visible one beat later.

- `heartbeat`: a line of beats: signals in, beats, reading; also its access to a line of its own
- `beat`: one beat in the making, from inbox to report, without input or output of its own
- `stage`: what one call of an enzyme may see and do
- `calls`: calling an enzyme, on a loop or without one; `parallel` calls several side by side
- `state`: what a line is at one moment, in memory
- `report`: what a beat says about itself; `runtime_tree`: how its journal is read at /rt/...
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

from mainspring.beats.driver import Driver as Driver
from mainspring.beats.heartbeat import Heartbeat as Heartbeat
from mainspring.beats.history.replay import Divergence as Divergence
from mainspring.beats.history.replay import Replay as Replay
from mainspring.beats.inlets import Inlet as Inlet
from mainspring.beats.inlets import Taken as Taken
from mainspring.beats.inlets import TopicInlet as TopicInlet
from mainspring.beats.program import BeatsProgram as BeatsProgram
from mainspring.beats.program import DeclaredInlet as DeclaredInlet
from mainspring.beats.program import TargetOf as TargetOf
from mainspring.beats.report import AgendaEntry as AgendaEntry
from mainspring.beats.report import BeatReport as BeatReport
from mainspring.beats.report import Diagnostic as Diagnostic
from mainspring.beats.report import Emitted as Emitted
from mainspring.beats.report import Staged as Staged
from mainspring.beats.shared.line import BEATS_ROLE as BEATS_ROLE
from mainspring.beats.stage import FATAL as FATAL
from mainspring.beats.stage import RETRY as RETRY
from mainspring.beats.stage import Stage as Stage
from mainspring.lazy_imports import offer

offer(globals())
