"""Effect runs: programs that yield typed effects, in memory or durable. See `Runtime`."""

from mainspring.log import Prepared
from mainspring.runs.builtin_effects import (
    Ask,
    HasEnded,
    Join,
    Now,
    Publish,
    Random,
    Signal,
    Sleep,
    Spawn,
    Until,
    Uuid,
    Version,
    WaitEvent,
    WaitSignal,
)
from mainspring.runs.context import Context, Later
from mainspring.runs.durable.durable_runs import DurableRuns
from mainspring.runs.durable.operations import NotFinished, RunConflict
from mainspring.runs.durable.records import BadRunId, Entry, ReplayMismatch, RunRecord, StoredFailure
from mainspring.runs.durable.replay_check import Verdict, check
from mainspring.runs.durable.store import History, UnknownRun
from mainspring.runs.effects import Answer, Effect, end, resume, tail
from mainspring.runs.errors import (
    AlreadyAnswered,
    EffectTimeout,
    GroupClosed,
    HandlerGaveUp,
    NoHostLoop,
    NotAnEffect,
    NotIdle,
    RunCancelled,
    RunError,
    TakenOver,
    TimedOut,
    UnhandledEffect,
    UnobservedFailure,
    WrongAnswer,
)
from mainspring.runs.groups import Group, Perform
from mainspring.runs.outcome import Cancelled, Failed, Outcome, Value
from mainspring.runs.ports import AskPort, EventPort, PublishPort
from mainspring.runs.registry import Programs, UnknownProgram
from mainspring.runs.run import Run
from mainspring.runs.runtime import Runtime
from mainspring.runs.values import Unserialisable

__all__ = [
    "AlreadyAnswered",
    "Answer",
    "Ask",
    "AskPort",
    "BadRunId",
    "Cancelled",
    "Context",
    "DurableRuns",
    "Effect",
    "EffectTimeout",
    "Entry",
    "EventPort",
    "Failed",
    "Group",
    "GroupClosed",
    "HandlerGaveUp",
    "HasEnded",
    "History",
    "Join",
    "Later",
    "NoHostLoop",
    "NotAnEffect",
    "NotFinished",
    "NotIdle",
    "Now",
    "Outcome",
    "Perform",
    "Prepared",
    "Programs",
    "Publish",
    "PublishPort",
    "Random",
    "ReplayMismatch",
    "Run",
    "RunCancelled",
    "RunConflict",
    "RunError",
    "RunRecord",
    "Runtime",
    "Signal",
    "Sleep",
    "Spawn",
    "StoredFailure",
    "TakenOver",
    "TimedOut",
    "UnhandledEffect",
    "UnknownProgram",
    "UnknownRun",
    "UnobservedFailure",
    "Unserialisable",
    "Until",
    "Uuid",
    "Value",
    "Verdict",
    "Version",
    "WaitEvent",
    "WaitSignal",
    "WrongAnswer",
    "check",
    "end",
    "resume",
    "tail",
]
