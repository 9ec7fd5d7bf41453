"""Mainspring: one event runtime for Python programs.

Commands, events, timers, effects and beats turn on one loop and rest in one durable log. The names a program needs are
here and are imported when first used, so that a small program does not pay for parts it leaves alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    __version__: str
    from mainspring.app import App as App
    from mainspring.app import BlockingEvent as BlockingEvent
    from mainspring.app import Depends as Depends
    from mainspring.app import Event as Event
    from mainspring.client import Client as Client
    from mainspring.client import SyncClient as SyncClient
    from mainspring.client import connect as connect
    from mainspring.codec import Codec as Codec
    from mainspring.codec import CodecError as CodecError
    from mainspring.errors import MainspringError as MainspringError
    from mainspring.kernel import Blob as Blob
    from mainspring.kernel import BlockingContext as BlockingContext
    from mainspring.kernel import Context as Context
    from mainspring.kernel import Fail as Fail
    from mainspring.kernel import RestartPolicy as RestartPolicy
    from mainspring.kernel import Retry as Retry
    from mainspring.retries import Reject as Reject
    from mainspring.runs import Ask as Ask
    from mainspring.runs import ChildFailed as ChildFailed
    from mainspring.runs import Effect as Effect
    from mainspring.runs import EffectFailed as EffectFailed
    from mainspring.runs import Perform as Perform
    from mainspring.runs import Publish as Publish
    from mainspring.runs import Sleep as Sleep
    from mainspring.runs import Spawn as Spawn
    from mainspring.runs import WaitEvent as WaitEvent
    from mainspring.runs import WaitSignal as WaitSignal
    from mainspring.runs import WaitTimedOut as WaitTimedOut
    from mainspring.runs import end as end
    from mainspring.runs import resume as resume
    from mainspring.runs import tail as tail
    from mainspring.tasks import TaskContext as TaskContext

_HOMES: Final = {
    "mainspring.app": "App BlockingEvent Depends Event",
    "mainspring.client": "Client SyncClient connect",
    "mainspring.codec": "Codec CodecError",
    "mainspring.errors": "MainspringError",
    "mainspring.kernel": "Blob BlockingContext Context Fail RestartPolicy Retry",
    "mainspring.retries": "Reject",
    "mainspring.runs": (
        "Ask ChildFailed Effect EffectFailed Perform Publish Sleep Spawn WaitEvent WaitSignal WaitTimedOut "
        "end resume tail"
    ),
    "mainspring.tasks": "TaskContext",
}


_find = lazy_imports(globals(), _HOMES)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _find(name)
    import importlib.metadata

    return importlib.metadata.version("mainspring")


def __dir__() -> list[str]:
    return list(globals()["__all__"])
