"""Worker slots: the place of a low-level actor, which makes its own messages and may break every rule.

What it says is checked in the turn that takes it: a valid message, inside its outbound schema, caused by something it
was given, with the correlation kept. A reply or an error answers the request it names; anything else is routed. One
broken rule is an `ActorFault`, an error event an `ActorCrash`; either way the actor is replaced.

A Worker cannot say which message an error belongs to. The oldest unanswered one is taken for it, because an actor
takes its mail in order; what lies behind goes to the next actor. Ids belong to connections, so an id may come twice
at once: the second one is then shown to the actor under another id, and what it says about that id is translated
back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import faults
from mainspring.kernel.capability import Plan, RestartPolicy
from mainspring.kernel.faults import is_error_data, said, sayable
from mainspring.kernel.pending import Mail
from mainspring.kernel.supervisor import Slot
from mainspring.message import Message, compact, encode_bytes, parse

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_REMEMBERED: Final = 16_384  # messages nobody waits for any more, to which a slow actor may still refer

Lineage = tuple[str, str | None]  # a message's own id and correlation


class WorkerSlot(Slot):
    def __init__(self, plan: Plan, kernel: Kernel, policy: RestartPolicy) -> None:
        super().__init__(plan, kernel, policy)
        self._unanswered: dict[str, Mail] = {}  # by the id the actor knows, oldest first
        self._known: dict[str, Lineage] = {}  # every message it was given lately, by the id it knows
        self._forget_at = 2 * _REMEMBERED

    def _spawn(self) -> Any:
        spawn = self.plan.capability.spawn
        assert spawn is not None
        actor = spawn()
        for needed in ("post_message", "terminate"):
            if not callable(getattr(actor, needed, None)):
                raise TypeError(f"spawn of {self.id} gave something without {needed}")
        return actor

    def attach(self) -> None:
        actor = self.actor

        def on_message(event: Any) -> None:
            if actor is self.actor:
                self.exchange.loop.post(self._turn_output, (actor, event.data))

        def on_error(event: Any) -> None:
            error = getattr(event, "error", None)
            text = said(error) if isinstance(error, BaseException) else sayable(str(getattr(event, "message", "error")))
            logger.error("the actor of %s reported an error", self.id, exc_info=error)
            self.fault(actor, None, faults.ACTOR_CRASH, text)

        if callable(getattr(actor, "add_event_listener", None)):
            actor.add_event_listener("message", on_message)
            actor.add_event_listener("error", on_error)
        else:
            actor.onmessage, actor.onerror = on_message, on_error

    def _post(self, mail: Mail) -> None:
        message = mail.message
        if mail.origin is not None:
            mail.seen_id = message.id
            if message.id in self._known:
                mail.seen_id = self.exchange.ids()
                metadata = msgspec.structs.replace(message.metadata, id=mail.seen_id)
                message = msgspec.structs.replace(message, metadata=metadata)
            self._unanswered[mail.seen_id] = mail
        self._known[message.id] = (mail.message.id, message.metadata.correlation)
        if len(self._known) > self._forget_at:
            self._forget_oldest()
        try:
            self.actor.post_message(message)
        except Exception as error:
            self.fault(self.actor, mail, faults.ACTOR_CRASH, said(error))
        else:
            if mail.origin is None:
                self.exchange.event_done()  # a Worker never says that it is done with an event

    def _forget_oldest(self) -> None:
        """Keep what somebody waits for, and of the rest the latest."""
        for ident in tuple(self._known)[:-_REMEMBERED]:
            mail = self._unanswered.get(ident)
            if mail is None or (mail.closed and not mail.unrecorded):
                del self._known[ident]
                self._unanswered.pop(ident, None)
        self._forget_at = len(self._known) + _REMEMBERED

    def _terminate(self, actor: Any) -> None:
        actor.terminate()

    def _unfinished(self, actor: Any, mail: Mail | None) -> tuple[Mail | None, list[Mail]]:
        waiting = [each for each in self._unanswered.values() if not each.closed or each.unrecorded]
        self._unanswered.clear()
        self._known.clear()
        if mail is None or (mail.origin is not None and mail not in waiting):
            mail = waiting[0] if waiting else None
        return mail, [each for each in waiting if each is not mail]

    # --- what the actor says -------------------------------------------------------------------------------------

    def _turn_output(self, item: tuple[Any, Any]) -> None:
        actor, given = item
        try:
            message = _as_message(given)
        except MainspringError as error:
            self._broken(actor, _causation_of(given), error.message)
            return
        causation = message.metadata.causation or ""
        cause = self._known.get(causation)
        if cause is None:
            self._broken(actor, "", "its causation is not a message the actor was given")
            return
        wrong = self._mistake(message, cause[1])
        if wrong:
            self._broken(actor, causation, wrong)
            return
        if cause[0] != causation:
            metadata = msgspec.structs.replace(message.metadata, causation=cause[0])
            message = msgspec.structs.replace(message, metadata=metadata)
        self._route(causation, message)

    def _route(self, seen_id: str, message: Message) -> None:
        exchange = self.exchange
        if message.kind == "event":
            exchange.turn_event((message, None))
        elif message.kind in ("command", "query"):
            exchange.turn_request((message, exchange.nobody))
        else:
            mail = self._unanswered.pop(seen_id, None)
            if mail is None:
                exchange.witness(message)
                exchange.counters["late"] += 1
            else:
                exchange.turn_outcome((mail, message))

    def _mistake(self, message: Message, correlation: str | None) -> str:
        """Which rule of outbound messages this one breaks, or the empty text."""
        if correlation is not None and message.metadata.correlation != correlation:
            return "the correlation was not kept"
        if message.kind == "error":
            return "" if is_error_data(message.data) else "an error has a code from 400 to 599 and a message"
        shape = self.plan.shape_of_output(message.kind, message.type)
        if shape is None:
            return f"its outbound schema has no such {message.kind}"
        wrong = shape.accepts(message.raw)
        return f"data: {wrong}" if wrong else ""

    def _broken(self, actor: Any, causation: str, text: str) -> None:
        if actor is self.actor:
            logger.error("the actor of %s said something invalid: %s", self.id, text)
            self.fault(actor, self._unanswered.get(causation), faults.ACTOR_FAULT, f"invalid output: {text}")


def _as_message(given: Any) -> Message:
    """What an actor said, strictly: a message, or its wire shape."""
    if isinstance(given, Message):
        given = {
            "kind": given.kind,
            "type": given.type,
            "data": given.raw,
            "metadata": given.metadata,
        }
    return parse(compact(encode_bytes(given)))


def _causation_of(given: Any) -> str:
    metadata = given.get("metadata") if isinstance(given, dict) else getattr(given, "metadata", None)
    found = metadata.get("causation") if isinstance(metadata, dict) else getattr(metadata, "causation", None)
    return found if isinstance(found, str) else ""
