"""Worker slots: the place of a low-level actor, which makes its own messages and may break every rule.

What it sends is checked in the turn that takes it: a valid message, inside its outbound schema, caused by something it
was given, with the correlation kept. A reply or an error answers the request it names; anything else is routed. One
broken rule is an `ActorFault`, an error event an `ActorCrash`; either way the actor is replaced.

A Worker cannot say which message an error belongs to. The oldest unanswered one is taken for it, because an actor
takes its mail in order; what lies behind goes to the next actor. What an actor sent before it failed counts, although
the fault overtakes it on the system lane: a request it has answered is neither blamed nor carried out again. What it
sends afterwards is ignored.

Ids belong to connections, so an id may come twice at once: the second one is then shown to the actor under another id,
and what it sends about that id is translated back.

A Worker may well be a thread: what it sends from there is taken over to the kernel's own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.actors import error_event_text, listen
from mainspring.kernel.contracts import CapabilityPlan
from mainspring.kernel.errors import is_error_data, text_of
from mainspring.kernel.mail import Mail
from mainspring.kernel.supervisor import ActorSlot
from mainspring.message import Message, compact, encode_bytes, parse
from mainspring.telemetry import error_keeping

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_REMEMBERED: Final = 16_384  # messages without a waiting requester, to which a slow actor may still refer

Cause = tuple[str, str | None]  # a message's own id and correlation


@dataclass(slots=True, eq=False)
class _Life:
    """What lies between the kernel and one actor. Ids are those the actor got."""

    actor: Any
    unanswered: dict[str, Mail] = field(default_factory=dict)  # oldest first
    given: dict[str, Cause] = field(default_factory=dict)  # every message it was given lately
    outputs: deque[Any] = field(default_factory=deque)  # what it sent and no turn has taken yet
    failed: bool = False  # from here on it is not listened to
    forget_at: int = 2 * _REMEMBERED


class WorkerSlot(ActorSlot):
    """The slot of a low-level capability: its actor is checked message by message."""

    def __init__(self, plan: CapabilityPlan, kernel: Kernel) -> None:
        super().__init__(plan, kernel)
        self._life = _Life(None)

    def _spawn(self) -> Any:
        spawn = self.plan.capability.spawn
        assert spawn is not None
        actor = spawn()
        for needed in ("post_message", "terminate"):
            if not callable(getattr(actor, needed, None)):
                raise TypeError(f"spawn of {self.id} gave something without {needed}")
        return actor

    def attach(self) -> None:
        actor, loop, here = self.actor, self.exchange.loop, threading.get_ident()
        life = self._life = _Life(actor)

        def on_message(event: Any) -> None:
            if threading.get_ident() != here:
                loop.complete(on_message, event)
            elif actor is self.actor and not life.failed:
                life.outputs.append(getattr(event, "data", None))
                loop.post(self._turn_output, life)

        def on_error(event: Any) -> None:
            if threading.get_ident() != here:
                loop.complete(on_error, event)
                return
            logger.error("the actor of %s reported an error", self.id, exc_info=getattr(event, "error", None))
            life.failed = True
            self.fault(actor, None, faults.ACTOR_CRASH, error_event_text(event))

        listen(actor, on_message, on_error)

    def _post(self, mail: Mail) -> None:
        message, life = mail.message, self._life
        if mail.origin is not None:
            mail.seen_id = message.id
            if message.id in life.given:
                mail.seen_id = self.exchange.ids()
                metadata = msgspec.structs.replace(message.metadata, id=mail.seen_id)
                message = msgspec.structs.replace(message, metadata=metadata)
            life.unanswered[mail.seen_id] = mail
        life.given[message.id] = (mail.message.id, message.metadata.correlation)
        if len(life.given) > life.forget_at:
            _forget_oldest(life)
        try:
            life.actor.post_message(message)
        except Exception as error:
            life.failed = True
            self.fault(life.actor, mail, faults.ACTOR_CRASH, text_of(error), error_keeping.keep(error))
        else:
            if mail.origin is None:
                self._event_done()  # a Worker never reports that it is done with an event

    def _terminate(self, actor: Any) -> None:
        actor.terminate()

    def _unfinished(self, actor: Any, mail: Mail | None) -> tuple[Mail | None, list[Mail]]:
        life = self._life
        answered = {_causation_of(output) for output in life.outputs if _kind_of(output) in ("reply", "error")}
        waiting = [
            each
            for ident, each in life.unanswered.items()
            if ident not in answered and (not each.closed or each.unrecorded)
        ]
        life.unanswered = {ident: each for ident, each in life.unanswered.items() if ident in answered}
        if mail is None or (mail.origin is not None and mail not in waiting):
            mail = waiting[0] if waiting else None
        return mail, [each for each in waiting if each is not mail]

    # --- what the actor sends -------------------------------------------------------------------------------------

    def _turn_output(self, life: _Life) -> None:
        if not life.outputs:
            return
        output = life.outputs.popleft()
        try:
            # Also a `Message`: its actor may have put anything into it.
            message = parse(compact(encode_bytes(output)), any_timestamp=True)
        except MainspringError as error:
            self._broken(life, _causation_of(output), error.message)
            return
        causation = message.metadata.causation or ""
        cause = life.given.get(causation)
        if cause is None:
            self._broken(life, "", "its causation is not a message the actor was given")
            return
        wrong = self._mistake(message, cause[1])
        if wrong:
            self._broken(life, causation, wrong)
            return
        if cause[0] != causation:
            metadata = msgspec.structs.replace(message.metadata, causation=cause[0])
            message = msgspec.structs.replace(message, metadata=metadata)
        self._route(life, causation, message)

    def _route(self, life: _Life, seen_id: str, message: Message) -> None:
        exchange = self.exchange
        if message.kind == "event":
            exchange.turn_event((message, None))
        elif message.kind in ("command", "query"):
            exchange.turn_request((message, exchange.no_reply))
        else:
            mail = life.unanswered.pop(seen_id, None)
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
        wrong = shape.mistake(message.raw)
        return f"data: {wrong}" if wrong else ""

    def _broken(self, life: _Life, causation: str, text: str) -> None:
        logger.error("the actor of %s sent something invalid: %s", self.id, text)
        text = f"invalid output: {text}"
        if life.actor is self.actor:
            life.failed = True
            life.outputs.clear()
            self.fault(life.actor, life.unanswered.get(causation), faults.ACTOR_FAULT, text)
            return
        mail = life.unanswered.pop(causation, None)  # replaced already: only the requester still waits for it
        if mail is not None:
            self._report(mail, faults.ACTOR_FAULT, text, "the request was not finished; the actor was replaced")


def _forget_oldest(life: _Life) -> None:
    """Keep requests that wait for an answer, and of the rest the latest."""
    for ident in tuple(life.given)[:-_REMEMBERED]:
        mail = life.unanswered.get(ident)
        if mail is None or (mail.closed and not mail.unrecorded):
            del life.given[ident]
            life.unanswered.pop(ident, None)
    life.forget_at = len(life.given) + _REMEMBERED


def _causation_of(output: Any) -> str:
    metadata = output.get("metadata") if isinstance(output, dict) else getattr(output, "metadata", None)
    causation = metadata.get("causation") if isinstance(metadata, dict) else getattr(metadata, "causation", None)
    return causation if isinstance(causation, str) else ""


def _kind_of(output: Any) -> Any:
    return output.get("kind") if isinstance(output, dict) else getattr(output, "kind", None)
