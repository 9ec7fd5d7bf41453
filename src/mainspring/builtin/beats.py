"""Beat: signals, beats and what they made, for everyone who can send a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec

from mainspring.beats import BeatReport, Heartbeat
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel, handler_from

_STATUS: Final = {
    "past_beat": 409,
    "unknown_beat": 404,
    "beat_running": 409,
    "line_exists": 409,
    "line_busy": 503,
    "log_unavailable": 503,
    "in_doubt": 503,
    "not_leading": 503,
}
_LEADER_TIMEOUT_MS: Final = 30_000  # for the node that leads the line, when the message names no timeout


class BeatSignal(msgspec.Struct):
    signal: Annotated[str | None, msgspec.Meta(description="What is asked for: a path like /signals/image.")] = None
    target: Annotated[str | None, msgspec.Meta(description="Where: a path; only names bound to it run.")] = None
    beat: Annotated[int | None, msgspec.Meta(description="A later beat than the next one.")] = None


class BeatQueued(msgspec.Struct):
    beat: Annotated[int, msgspec.Meta(description="The beat the signal lands in.")]


class BeatRun(msgspec.Struct):
    beats: Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many beats to run, one after the other.")] = 1


class BeatRunResult(msgspec.Struct):
    beat: Annotated[int, msgspec.Meta(description="The last beat that ran.")]
    digest: Annotated[str, msgspec.Meta(description="Its digest.")]
    runs: Annotated[int, msgspec.Meta(description="Enzymes called in all beats.")]
    diagnostics: Annotated[list[dict[str, Any]], msgspec.Meta(description="What a person should know, in order.")]


class BeatRead(msgspec.Struct):
    path: Annotated[
        str, msgspec.Meta(description="A path of the state, of /rt/beat/<N>, /rt/dead/<N> or /cas/<sha256>.")
    ]
    at: Annotated[int | None, msgspec.Meta(description="As enzymes of this beat read it; without it, now.")] = None


class BeatValue(msgspec.Struct):
    value: Annotated[Any, msgspec.Meta(description="The value; null where there is none.")]


class BeatFork(msgspec.Struct):
    at: Annotated[int, msgspec.Meta(ge=0, description="The last beat both lines share.")]
    name: Annotated[str, msgspec.Meta(description="Name of the new line.")]


class BeatForked(msgspec.Struct):
    line: Annotated[str, msgspec.Meta(description="Name of the new line.")]
    beat: Annotated[int, msgspec.Meta(description="Its next beat.")]


class BeatNoInput(msgspec.Struct):
    """No input."""


class BeatStatus(msgspec.Struct):
    beat: Annotated[int, msgspec.Meta(description="The next beat.")]
    digest: Annotated[str, msgspec.Meta(description="The digest of the last one.")]
    paused: Annotated[bool, msgspec.Meta(description="Whether signals wait.")]
    waiting: Annotated[int, msgspec.Meta(description="Signals that wait for the next beat.")]


def beat(heartbeat: Heartbeat, kernel: Kernel | None = None) -> Capability:
    """The capability `Beat` of a node with this heartbeat; a kernel has the signals in its causation tree."""

    async def signal(data: BeatSignal, ctx: Context) -> BeatQueued:
        """Queue a signal for the next beat or a later one. It is durable when the answer comes."""
        with _failing_with_status():
            lands = heartbeat.signal(data.signal, data.target, data.beat)
            await heartbeat.aflush()
        if kernel is not None:
            _note(kernel, ctx, lands, data)
        return BeatQueued(lands)

    async def run(data: BeatRun, ctx: Context) -> BeatRunResult:
        """Run beats now, whatever drives them otherwise; on the node that leads the line, where several share it."""
        if not heartbeat.leads and kernel is not None:
            return await _run_on_leader(kernel, heartbeat, data, ctx)
        with _failing_with_status():
            reports = [await heartbeat.abeat() for _ in range(data.beats)]
        return _summary(reports)

    async def read(data: BeatRead, ctx: Context) -> BeatValue:
        """Read the committed state, now or as of a beat."""
        with _failing_with_status():
            return BeatValue(await heartbeat.aread(data.path, data.at))

    async def pause(data: BeatNoInput, ctx: Context) -> BeatStatus:
        """Let signals wait from the next beat on."""
        heartbeat.pause()
        return await flushed(paused=True)

    async def resume(data: BeatNoInput, ctx: Context) -> BeatStatus:
        """Work on waiting signals again."""
        heartbeat.resume()
        return await flushed(paused=False)

    async def flushed(*, paused: bool) -> BeatStatus:
        """The request is durable; where several nodes share a line, its leader is about to do it."""
        with _failing_with_status():
            await heartbeat.aflush()
        return BeatStatus(heartbeat.next_beat, heartbeat.digest, paused, heartbeat.waiting)

    async def standing(data: BeatNoInput, ctx: Context) -> BeatStatus:
        """Where the line of beats stands, as far as this node knows."""
        return BeatStatus(heartbeat.next_beat, heartbeat.digest, heartbeat.paused, heartbeat.waiting)

    async def fork(data: BeatFork, ctx: Context) -> BeatForked:
        """Start a new line after an old beat; this one goes on as it is."""
        with _failing_with_status():
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


@contextmanager
def _failing_with_status() -> Iterator[None]:
    """Turn errors of beats into answers: the request was wrong, unless it came at a wrong time."""
    try:
        yield
    except MainspringError as error:
        raise Fail(_STATUS.get(error.code, 422), error.message, remedy=error.remedy) from None


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
