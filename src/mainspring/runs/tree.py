"""Who belongs to whom: the tree of runs.

Every child has exactly one owner, a run, and may belong to one of the owner's groups. The rules, in one place:

- an owner that returns waits for its attached children; the ones marked `unref` are cancelled instead;
- an owner that fails or is cancelled takes all its children along, detached ones too;
- a child of a group that fails cancels its siblings and fails the owner, unless a run was joining it; where failures
  are raised in programs, the owner gets `ChildFailed` at the effect it performs, or at its next one;
- an attached child outside a group that failed and was never observed fails the owner when it would have returned;
- a detached child outlives an owner that returned a value; its failure goes to the failure sink like every other.

Cancelling a child is never a failure of its owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.runs.errors import ChildFailed, UnobservedFailure
from mainspring.runs.run import VALUE, Cancelled, Failed, Outcome, Run, Value
from mainspring.runs.values import error_fields

if TYPE_CHECKING:
    from mainspring.runs.groups import RunGroup

SIBLING_FAILED: Final = "another child of the group failed"

_NOTHING: Final = object()


class Family:
    """The relations of one run. Made when a run gets its first relation."""

    __slots__ = (
        "_run",
        "children",
        "detached",
        "failed",
        "group",
        "held",
        "is_detached",
        "joiners",
        "observed",
        "owner",
        "spawned",
        "taken_by",
        "unreferenced",
        "unseen",
    )

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self.owner: Run[Any] | None = None
        self.group: RunGroup | None = None
        self.is_detached: bool = False
        self.unreferenced: bool = False
        self.observed: bool = False
        self.taken_by: str = ""  # the run that took this one along when it ended
        self.spawned: int = 0  # how many children it ever had; gives durable children their ids
        self.children: dict[Run[Any], None] = {}  # live and attached, in order of birth
        self.detached: dict[Run[Any], None] = {}
        self.failed: list[Run[Any]] = []
        self.unseen: list[Run[Any]] = []  # in groups, and the log knows them as failed: see `cut_short`
        self.joiners: list[Callable[[Outcome[Any]], object]] = []
        self.held: Any = _NOTHING  # the owner's value while it waits for its children

    # -- as an owner

    def adopt(self, child: Run[Any], *, group: RunGroup | None = None, detached: bool = False) -> None:
        """Become the owner of a new child."""
        own = family_of(child)
        own.owner, own.group, own.is_detached = self._run, group, detached
        if not child.done:
            (self.detached if detached else self.children)[child] = None
        elif isinstance(child.decided, Failed) and not detached:
            (self.failed if group is None else self.unseen).append(child)

    def waits_for_children(self) -> bool:
        """Whether a child that counts is alive."""
        return any(not family_of(child).unreferenced for child in self.children)

    def holds_back(self, value: Any) -> bool:
        """The run returned: True when its end must wait for its children, or became a failure instead."""
        if self.waits_for_children():
            self.held = value
            return True
        unobserved = [child for child in self.failed if not family_of(child).observed]
        if not unobserved:
            return False
        child, run = unobserved[0], self._run
        error = UnobservedFailure(
            f"child {child.id} of run {run.id} failed and nobody looked at its outcome",
            remedy="join the child, or spawn it in a group",
        )
        if isinstance(child.decided, Failed):
            error.__cause__ = child.decided.error
        run.scheduler.settle(run, Failed(error))
        return True

    def take_along(self, outcome: Outcome[Any]) -> list[tuple[Run[Any], Cancelled]]:
        """The children that end with this owner, and how each ends."""
        self.held = _NOTHING
        with_it = Cancelled(outcome.reason if isinstance(outcome, Cancelled) else taken_along_by(self._run.id))
        detached = () if isinstance(outcome, Value) else self.detached
        taken = [child for child in (*self.children, *detached) if not child.done]
        for child in taken:
            family_of(child).taken_by = self._run.id
        return [(child, with_it) for child in taken]

    def cut_short(self, joins: Run[Any] | None, effect: str) -> bool:
        """An owner performs an effect while a child in a group has failed: let that fail the owner, or the effect.

        For an owner that is executed again: what its journal knows it did before the child failed, or it joined the
        child and coped. Its first effect without an answer tells: unless it `joins` the child, the child failed
        unobserved.
        """
        unseen, self.unseen = self.unseen, []
        for child in unseen:
            outcome, own, scheduler = child.decided, family_of(child), self._run.scheduler
            if isinstance(outcome, Failed) and not own.observed and child is not joins:
                if not scheduler.raises:
                    scheduler.settle(self._run, Failed(outcome.error))
                    return True
                own.observed = True
                scheduler.effect_failed(self._run, effect, child_failed(child.id, outcome.error))
                if own.group is not None:
                    own.group.cancel(SIBLING_FAILED)
                return True
        return False

    def failure_known(self, child_id: str) -> None:
        """The journal of an owner that is executed again says that the failure of this child was raised in it."""
        self.unseen = [child for child in self.unseen if child.id != child_id]

    def group_ended(self, group: RunGroup) -> None:
        """The journal of an owner that is executed again says that a group ended well."""
        self.unseen = [child for child in self.unseen if family_of(child).group is not group]

    def _child_ended(self, child: Run[Any], outcome: Outcome[Any]) -> None:
        family, run = family_of(child), self._run
        self.detached.pop(child, None)
        self.children.pop(child, None)
        if isinstance(outcome, Failed) and not family.observed and not family.is_detached and not run.done:
            if family.group is None:
                self.failed.append(child)
            elif run.scheduler.raises:
                self._interrupt(child, family.group, outcome.error)
            else:
                run.scheduler.settle_owner(run, Failed(outcome.error))
                return
        if family.group is not None:
            family.group.child_left(child)
        self._release_held()

    def _interrupt(self, child: Run[Any], group: RunGroup, error: BaseException) -> None:
        """Raise the failure of a child at the effect that the owner performs, and cancel the rest of its group."""
        run, failure = self._run, child_failed(child.id, error)
        if run.context is not None and run.context.interrupt(failure):
            family_of(child).observed = True
        elif run.durable is not None:  # it has an answer it did not get yet: at its next effect
            self.unseen.append(child)
        else:
            run.scheduler.raise_at_next_effect(run, failure, unless_joins=child)
        group.cancel(SIBLING_FAILED)

    def _release_held(self) -> None:
        """Let an owner that only waits for its children end, when none is left that counts."""
        if self.held is not _NOTHING and not self._run.done and not self.waits_for_children():
            value, self.held = self.held, _NOTHING
            self._run.scheduler.enqueue(self._run, VALUE, value)

    # -- as a child

    def ended(self, outcome: Outcome[Any]) -> None:
        """The run has its outcome: call those who join it, then its owner."""
        joiners, self.joiners = self.joiners, []
        self.observed = self.observed or bool(joiners)
        for joined in joiners:
            joined(outcome)
        if self.owner is not None:
            family_of(self.owner)._child_ended(self._run, outcome)

    def leave(self) -> None:
        """The run is removed as if it had never been started: its owner does not wait for it."""
        if self.owner is not None:
            family = family_of(self.owner)
            family.children.pop(self._run, None)
            family.detached.pop(self._run, None)

    def unref(self) -> None:
        """The owner no longer waits for this child."""
        self.unreferenced = True
        if self.owner is not None:
            if self.group is not None:
                self.group.child_left(self._run)
            family_of(self.owner)._release_held()


def taken_along_by(owner: str) -> str:
    """The reason of a child that was cancelled because its owner ended."""
    return f"its owner {owner} ended"


def child_failed(run_id: str, error: BaseException) -> ChildFailed:
    """What the owner of a failed child gets."""
    fields = error_fields(error)
    return ChildFailed(fields["type"], fields["message"], fields.get("code", ""), run_id)


def family_of(run: Run[Any]) -> Family:
    """The relations of a run, made if it has none yet."""
    if run.family is None:
        run.family = Family(run)
    return run.family


def when_ended(run: Run[Any], call: Callable[[Outcome[Any]], object]) -> Callable[[], None]:
    """Call once with the outcome; at once when there is one. Gives a function that stops waiting."""
    outcome = run.outcome_now()
    family = family_of(run)
    if outcome is not None:
        family.observed = True
        call(outcome)
        return lambda: None
    family.joiners.append(call)
    return lambda: family.joiners.remove(call) if call in family.joiners else None


def root_of(run: Run[Any]) -> Run[Any]:
    """The run at the top of the tree."""
    while run.family is not None and run.family.owner is not None:
        run = run.family.owner
    return run
