"""The way to an end, for a run and for everyone who ends with it.

An owner takes its children along, a failure in a group takes the owner along, that one takes its other children along,
and so on, up and down the tree. Trees are as deep as a recursive program makes them, so this is no recursion: whoever
still has to end waits on a list. The order is that of a recursion all the same: children first, then the program, then
everyone who wants to know, and then the owner.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from mainspring.runs.endings import close_program
from mainspring.runs.holding import let_go
from mainspring.runs.outcome import Outcome
from mainspring.runs.run import Run

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

Ending = tuple[Run[Any], Outcome[Any]]


class Settling:
    """Ends the runs of one scheduler."""

    __slots__ = ("_owners", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owners: list[Ending] | None = None  # to end after the run that is ending now; None: none is

    def settle(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """End a run, and whoever ends with it, before this returns."""
        if run._family is None:  # nobody does, the usual case
            self._begin(run, outcome)
            self._complete(run, outcome)
            return
        around, self._owners = self._owners, []
        under_way = [self._ending(run, outcome)]
        try:
            while under_way:
                child = next(under_way[-1], None)
                if child is not None:
                    under_way.append(self._ending(*child))
                    continue
                under_way.pop()
                under_way += [self._ending(*each) for each in reversed(self._owners)]
                self._owners.clear()
        finally:
            self._owners = around
            for unfinished in reversed(under_way):
                unfinished.close()

    def settle_owner(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """End the owner of a run that is ending: decided now, and carried out when that one has ended."""
        if self._owners is None:
            self.settle(run, outcome)
        else:
            run._done, run._outcome = True, outcome
            self._owners.append((run, outcome))

    def _ending(self, run: Run[Any], outcome: Outcome[Any]) -> Generator[Ending, None, None]:
        """The end of one run of a family; gives the children that must end before it goes on."""
        self._begin(run, outcome)
        if run._family is not None:
            for child, taken_along in run._family.taken_along(run, outcome):
                if not child._done:
                    yield child, taken_along
        self._complete(run, outcome)

    def _begin(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        run._done, run._asked, run._outcome = True, None, outcome
        self._scheduler.leaves(run)
        if run._releases is not None:
            let_go(run)

    def _complete(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """Close the program and tell everyone, in the name of whoever the run was started for."""
        lineage = run._lineage
        entered = None if lineage is None else lineage.enter()
        try:
            close_program(run)
            if run._durable is not None:
                run._durable.settle(run, outcome)
            else:
                self._scheduler.announce(run)
        finally:
            if lineage is not None:
                lineage.leave(entered)
