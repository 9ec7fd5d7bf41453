"""Effect runs: programs that yield typed effects, in memory or durable. See `Runtime`.

- `runtime`: `Runtime`, the face
- `effects`: effects and answers, and the effects every runtime knows
- `programs`: the two forms of a program, its name, its code and its arguments
- `handlers`: how a handler is registered, asked and retried, what its results mean, and its context
- `steps`: ordinary functions as effects
- `scheduler`: the queue, the ticks and where they come from, the timers, and the way to an end
- `run`: one run: its state, its handle, its outcome
- `tree`: parents and children: who waits for whom, who ends with whom
- `groups`: `perform`, groups of children, intervals
- `signals`: values sent to a run from outside
- `ports`: what a node passes in for `Ask`, `Publish` and `WaitEvent`
- `lineage`: the message a run works for: log lines and spans
- `values`: values as JSON
- `errors`: what can go wrong
- `durable/`: journals, recovery, retry and fork
- `cluster/`: which node executes a durable run
"""

from mainspring.log import Prepared
from mainspring.runs.durable.durable_runs import DurableRuns
from mainspring.runs.durable.records import JournaledEffect, RunRecord
from mainspring.runs.durable.replay_check import Verdict, check
from mainspring.runs.durable.store import History
from mainspring.runs.effects import (
    Answer,
    Ask,
    Effect,
    HasEnded,
    Join,
    Now,
    Progress,
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
    answer_type,
    end,
    resume,
    tail,
)
from mainspring.runs.errors import (
    AlreadyAnswered,
    BadRunId,
    ChildFailed,
    ChildTimedOut,
    EffectFailed,
    EffectTimeout,
    FailedByHand,
    GroupClosed,
    HandlerDied,
    HandlerGaveUp,
    NeverAwaited,
    NoHostLoop,
    NotAnEffect,
    NotExecuted,
    NotFinished,
    NotIdle,
    ReplayMismatch,
    RunCancelled,
    RunConflict,
    RunError,
    StoredFailure,
    TakenOver,
    UnhandledEffect,
    UnknownProgram,
    UnknownQuestion,
    UnknownRun,
    UnobservedFailure,
    Unserialisable,
    WaitTimedOut,
    WrongAnswer,
)
from mainspring.runs.groups import Perform, RunGroup
from mainspring.runs.handlers import Attempts, EffectContext, Later
from mainspring.runs.ports import AskPort, EventPort, PublishPort
from mainspring.runs.programs import Programs, return_type
from mainspring.runs.run import Cancelled, Failed, Outcome, Run, Value
from mainspring.runs.runtime import RunCounts, Runtime
from mainspring.runs.steps import idempotency_key

__all__ = [
    "AlreadyAnswered",
    "Answer",
    "Ask",
    "AskPort",
    "Attempts",
    "BadRunId",
    "Cancelled",
    "ChildFailed",
    "ChildTimedOut",
    "DurableRuns",
    "Effect",
    "EffectContext",
    "EffectFailed",
    "EffectTimeout",
    "EventPort",
    "Failed",
    "FailedByHand",
    "GroupClosed",
    "HandlerDied",
    "HandlerGaveUp",
    "HasEnded",
    "History",
    "Join",
    "JournaledEffect",
    "Later",
    "NeverAwaited",
    "NoHostLoop",
    "NotAnEffect",
    "NotExecuted",
    "NotFinished",
    "NotIdle",
    "Now",
    "Outcome",
    "Perform",
    "Prepared",
    "Programs",
    "Progress",
    "Publish",
    "PublishPort",
    "Random",
    "ReplayMismatch",
    "Run",
    "RunCancelled",
    "RunConflict",
    "RunCounts",
    "RunError",
    "RunGroup",
    "RunRecord",
    "Runtime",
    "Signal",
    "Sleep",
    "Spawn",
    "StoredFailure",
    "TakenOver",
    "UnhandledEffect",
    "UnknownProgram",
    "UnknownQuestion",
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
    "WaitTimedOut",
    "WrongAnswer",
    "answer_type",
    "check",
    "end",
    "idempotency_key",
    "resume",
    "return_type",
    "tail",
]
