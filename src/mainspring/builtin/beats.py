"""Beat: signals, beats and the state they make, as messages."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from mainspring.beats import BeatReport, Heartbeat
from mainspring.builtin.answers import Empty, about, errors_as_answers
from mainspring.kernel import Capability, Context, Fail, Kernel, handler_from

_LEADER_TIMEOUT_MS: Final = 30_000  # for the node that leads the line, when the message names no timeout


class BeatSignal(msgspec.Struct):
    signal: Annotated[str | None, about("What is asked for: a path like /signals/image.")] = None
    target: Annotated[str | None, about("Where: a path; only names bound to it run.")] = None
    beat: Annotated[int | None, about("A later beat than the next one.")] = None


class BeatQueued(msgspec.Struct):
    beat: Annotated[int, about("The beat the signal lands in.")]


class BeatRun(msgspec.Struct):
    beats: Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many beats to run, one after the other.")] = 1


class BeatRunResult(msgspec.Struct):
    beat: Annotated[int, about("The last beat that ran.")]
    digest: Annotated[str, about("Its digest.")]
    runs: Annotated[int, about("Enzymes called in all beats.")]
    diagnostics: Annotated[list[dict[str, Any]], about("What a person should know, in order.")]


class BeatRead(msgspec.Struct):
    path: Annotated[str, about("A path of the state, of /rt/beat/<N>, /rt/dead/<N> or /cas/<sha256>.")]
    at: Annotated[int | None, about("As enzymes of this beat read it; without it, now.")] = None


class BeatValue(msgspec.Struct):
    value: Annotated[Any, about("The value; null where there is none.")]


class BeatFork(msgspec.Struct):
    at: Annotated[int, msgspec.Meta(ge=0, description="The last beat both lines share.")]
    name: Annotated[str, about("Name of the new line.")]


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

    async def signal(data: BeatSignal, ctx: Context) -> BeatQueued:
        """Queue a signal for the next beat or a later one. It is durable when the answer comes."""
        with errors_as_answers():
            lands = heartbeat.signal(data.signal, data.target, data.beat)
            await heartbeat.aflush()
        if kernel is not None:
            _note(kernel, ctx, lands, data)
        return BeatQueued(lands)

    async def run(data: BeatRun, ctx: Context) -> BeatRunResult:
        """Run beats now, whatever drives them otherwise; on the node that leads the line, where several share it."""
        if not heartbeat.leads and kernel is not None:
            return await _run_on_leader(kernel, heartbeat, data, ctx)
        with errors_as_answers():
            reports = [await heartbeat.abeat() for _ in range(data.beats)]
        return _summary(reports)

    async def read(data: BeatRead, ctx: Context) -> BeatValue:
        """Read the committed state, now or as of a beat."""
        with errors_as_answers():
            return BeatValue(await heartbeat.aread(data.path, data.at))

    async def pause(data: Empty, ctx: Context) -> BeatStatus:
        """Let signals wait from the next beat on."""
        heartbeat.pause()
        return await flushed(paused=True)

    async def resume(data: Empty, ctx: Context) -> BeatStatus:
        """Work on waiting signals again."""
        heartbeat.resume()
        return await flushed(paused=False)

    async def flushed(*, paused: bool) -> BeatStatus:
        """The request is durable; where several nodes share a line, its leader is about to do it."""
        with errors_as_answers():
            await heartbeat.aflush()
        return BeatStatus(heartbeat.next_beat, heartbeat.digest, paused, heartbeat.waiting)

    async def standing(data: Empty, ctx: Context) -> BeatStatus:
        """Where the line of beats stands, as far as this node knows."""
        return BeatStatus(heartbeat.next_beat, heartbeat.digest, heartbeat.paused, heartbeat.waiting)

    async def fork(data: BeatFork, ctx: Context) -> BeatForked:
        """Start a new line after an old beat; this one goes on as it is."""
        with errors_as_answers():
            await heartbeat.afork(data.at, data.name)
        return BeatForked(data.name, data.at + 1)

    handlers = [
        handler_from("command", "Beat.Signal", signal),
        handler_from("command", "Beat.Run", run),
        handler_from("query", "Beat.Read", read),
        handler_from("command", "Beat.Pause", pause),
        handler_from("command", "Beat.Resume", resume),
        handler_from("command", "Beat.Fork", fork),
        handler_from("query", "Beat.Standing", standing),
    ]
    return Capability(id="Beat", description="Signals, beats and the state they make.", handlers=handlers)


async def _run_on_leader(kernel: Kernel, heartbeat: Heartbeat, data: BeatRun, ctx: Context) -> BeatRunResult:
    leader = heartbeat.leader
    if leader is None:
        raise Fail(503, "no node leads the line of beats now", remedy="try again in a moment")
    timeout_ms = ctx.message.metadata.timeout or _LEADER_TIMEOUT_MS
    answer = await kernel.ask_node(leader, "command", "Beat.Run", data, timeout_ms=timeout_ms)
    return msgspec.convert(answer, BeatRunResult)


def _note(kernel: Kernel, ctx: Context, beat: int, data: BeatSignal) -> None:
    """The signal is part of the causation tree, below the command that gave it."""
    cause = ctx.message.metadata
    place = f"beat/{beat}{data.signal or ''}{f'@{data.target}' if data.target else ''}"
    kernel.note("beat", "signal", place, causation=cause.id, correlation=cause.correlation)


def _summary(reports: list[BeatReport]) -> BeatRunResult:
    notes = [
        {"beat": report.beat, "code": note.code, "signal": note.signal, "target": note.target, "names": note.names}
        for report in reports
        for note in report.diagnostics
    ]
    runs = sum(entry.result != "duplicate" for report in reports for entry in report.agenda)
    return BeatRunResult(reports[-1].beat, reports[-1].digest, runs, notes)
