"""Beat: signals, beats and the state they make, as messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from mainspring.beats import BeatReport, Heartbeat
from mainspring.builtin.answers import Messages, about
from mainspring.kernel import Capability, Context, Fail, Kernel

_LEADER_TIMEOUT_MS: Final = 30_000  # for the node that leads the line, when the message names no timeout


message: Final = Messages("Beat", "Signals, beats and the state they make.")


class BeatRunResult(msgspec.Struct):
    beat: Annotated[int, about("The last beat that ran.")]
    digest: Annotated[str, about("Its digest.")]
    runs: Annotated[int, about("Enzymes called in all beats.")]
    diagnostics: Annotated[list[dict[str, Any]], about("What a person should know, in order.")]


class BeatForked(msgspec.Struct):
    line: Annotated[str, about("Name of the new line.")]
    beat: Annotated[int, about("Its next beat.")]


class BeatStatus(msgspec.Struct):
    beat: Annotated[int, about("The next beat.")]
    digest: Annotated[str, about("The digest of the last one.")]
    paused: Annotated[bool, about("Whether signals wait.")]
    waiting: Annotated[int, about("Signals that wait for the next beat.")]


def beat_capability(heartbeat: Heartbeat, kernel: Kernel | None = None) -> Capability:
    """The capability `Beat` of a node with this heartbeat; a kernel has the signals in its causation tree."""
    return message.of(_Beats(heartbeat, kernel))


@dataclass(frozen=True, slots=True)
class _Beats:
    heartbeat: Heartbeat
    kernel: Kernel | None

    @property
    def line(self) -> Heartbeat:
        """The line of beats. Raises Fail where it cannot be read."""
        damage = self.heartbeat.damage
        if damage is not None:
            raise Fail(503, f"there are no beats on this node: {damage.message}", remedy=damage.remedy)
        return self.heartbeat

    @message("command", "Beat.Signal", "BeatSignal", gives="BeatQueued.beat")
    async def give_signal(
        self,
        ctx: Context,
        signal: Annotated[str | None, about("What is asked for: a path like /signals/image.")] = None,
        target: Annotated[str | None, about("Where: a path; only names bound to it run.")] = None,
        beat: Annotated[int | None, about("A later beat than the next one.")] = None,
    ) -> Annotated[int, about("The beat the signal lands in.")]:
        """Queue a signal for the next beat or a later one. It is durable when the answer comes."""
        lands = self.line.signal(signal, target, beat)
        await self.line.aflush()
        if self.kernel is not None:  # the signal is part of the causation tree, below the command that gave it
            cause = ctx.message.metadata
            place = f"beat/{lands}{signal or ''}{f'@{target}' if target else ''}"
            self.kernel.note("beat", "signal", place, causation=cause.id, correlation=cause.correlation)
        return lands

    @message("command", "Beat.Run", "BeatRun")
    async def run(
        self,
        ctx: Context,
        beats: Annotated[
            int, msgspec.Meta(ge=1, le=1000, description="How many beats to run, one after the other.")
        ] = 1,
    ) -> BeatRunResult:
        """Run beats now, whatever drives them otherwise; on the node that leads the line, where several share it."""
        heartbeat = self.line
        if heartbeat.leads or self.kernel is None:
            return _summary([await heartbeat.abeat() for _ in range(beats)])
        if heartbeat.leader is None:
            raise Fail(503, "no node leads the line of beats now", remedy="try again in a moment")
        timeout_ms, data = ctx.message.metadata.timeout or _LEADER_TIMEOUT_MS, {"beats": beats}
        answer = await self.kernel.ask_node(heartbeat.leader, "command", "Beat.Run", data, timeout_ms=timeout_ms)
        return msgspec.convert(answer, BeatRunResult)

    @message("query", "Beat.Read", "BeatRead", gives="BeatValue.value")
    async def read(
        self,
        path: Annotated[str, about("A path of the state, of /rt/beat/<N>, /rt/dead/<N> or /cas/<sha256>.")],
        at: Annotated[int | None, about("As enzymes of this beat read it; without it, now.")] = None,
    ) -> Annotated[Any, about("The value; null where there is none.")]:
        """Read the committed state, now or as of a beat."""
        return await self.line.aread(path, at)

    @message("command", "Beat.Pause")
    async def pause(self) -> BeatStatus:
        """Let signals wait from the next beat on."""
        self.line.pause()
        await self.line.aflush()  # durable; where several nodes share a line, its leader is about to do it
        return self._status(paused=True)

    @message("command", "Beat.Resume")
    async def resume(self) -> BeatStatus:
        """Work on waiting signals again."""
        self.line.resume()
        await self.line.aflush()
        return self._status(paused=False)

    @message("command", "Beat.Fork", "BeatFork")
    async def fork(
        self,
        at: Annotated[int, msgspec.Meta(ge=0, description="The last beat both lines share.")],
        name: Annotated[str, about("Name of the new line.")],
    ) -> BeatForked:
        """Start a new line after an old beat; this one goes on as it is."""
        await self.line.afork(at, name)
        return BeatForked(name, at + 1)

    @message("query", "Beat.Standing")
    async def standing(self) -> BeatStatus:
        """Where the line of beats stands, as far as this node knows."""
        return self._status(paused=self.line.paused)

    def _status(self, *, paused: bool) -> BeatStatus:
        return BeatStatus(self.line.next_beat, self.line.digest, paused, self.line.waiting)


def _summary(reports: list[BeatReport]) -> BeatRunResult:
    notes = [
        {"beat": report.beat, "code": note.code, "signal": note.signal, "target": note.target, "names": note.names}
        for report in reports
        for note in report.diagnostics
    ]
    runs = sum(entry.result != "duplicate" for report in reports for entry in report.agenda)
    return BeatRunResult(reports[-1].beat, reports[-1].digest, runs, notes)
