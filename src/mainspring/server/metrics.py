"""The node's numbers in Prometheus' text format.

Nothing is counted here. The parts keep their own counters, and this module reads them when a scraper asks, so that the
numbers in GET /stats, in `system.metrics` and here can never disagree, and counting costs the same whether anybody
looks or not. One function per part; the names are public, and docs/reference/metrics.md lists them.

Labels come from what a program declares (types, capabilities, effects, enzymes' results, routes) and from topics and
groups, of which a bounded number is named, and only those that the caller may read. Nothing a client sends can make a
new label.

Import this module when somebody scrapes: prometheus_client is large, and most nodes are asked seldom.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder

from mainspring.bus import DiskState, GroupInfo, Stats
from mainspring.kernel import Contract, Kernel
from mainspring.loop import Watchdog
from mainspring.server.health import NodeParts, readiness
from mainspring.telemetry import Histogram

PREFIX: Final = "mainspring_"
MOST_ROWS: Final = 1_000  # of one family with a topic in it; a scraper and its dashboards take no more
OTHERS: Final = "(others)"  # the label of all further rows; no topic can have this name

Row = tuple[tuple[str, ...], float]
Rows = Iterable[tuple[str | tuple[str, ...], Any]]  # the labels of each row, or its only one, and its number


def exposition(
    node: NodeParts, accept: str, topics: Container[str], visible: Callable[[str, str], bool] | None = None
) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for a scraper that accepts it, else the classic format.

    Of the topics and their groups only these are named; totals count all. `visible` says which kinds and types of
    messages are named; with it effects are not.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(node, topics, visible))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@dataclass(eq=False, slots=True)
class _Collector:
    """Reads one node at the moment of the scrape."""

    node: NodeParts
    topics: Container[str]
    visible: Callable[[str, str], bool] | None

    def collect(self) -> Iterator[Metric]:
        for part in (_process, _loop, _log):
            yield from part(self.node)
        yield from _bus(self.node, self.topics)
        yield from _kernel(self.node, self.visible)
        yield from _runs(self.node, with_effects=self.visible is None)
        for part in (_beats, _connections, _cluster):
            yield from part(self.node)


# --- how a number becomes a metric: one call for each family, with its name, its text, its number or rows, labels ---


def _counter(name: str, text: str, value: float | Rows, *labels: str) -> Metric:
    """What only grows; the name gets its `_total` when it is written."""
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=labels), value)


def _gauge(name: str, text: str, value: float | Rows, *labels: str) -> Metric:
    """What is so now."""
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=labels), value)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, value: float | Rows) -> Metric:
    for names, number in [((), value)] if isinstance(value, int | float) else value:
        family.add_metric([names] if isinstance(names, str) else names, number)
    return family


def _histogram(name: str, text: str, value: Histogram | Rows, *labels: str) -> Metric:
    """Sizes or durations, counted by how large they were."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for names, histogram in [((), value)] if isinstance(value, Histogram) else value:
        family.add_metric(names, histogram.buckets(), histogram.sum)
    return family


def _info(name: str, text: str, **labels: str) -> Metric:
    return InfoMetricFamily(PREFIX + name, text, value=labels)


def bounded(rows: Iterable[Row]) -> list[Row]:
    """At most so many rows, in their order; the rest is one row more, whose number is their sum."""
    known = list(rows)
    if len(known) <= MOST_ROWS:
        return known
    rest = sum(value for _, value in known[MOST_ROWS:])
    return [*known[:MOST_ROWS], ((OTHERS,) * len(known[0][0]), rest)]


# --- the parts ---


def _process(node: NodeParts) -> Iterator[Metric]:
    """Which version runs, and whether the node is ready."""
    yield _info("build", "The running version.", version=version("mainspring"))
    yield _gauge("ready", "1 while the node takes requests.", readiness(node).ready)


def _loop(node: NodeParts) -> Iterator[Metric]:
    """How much the loop does, what waits, and what blocked it."""
    if node.loop is None:
        return
    now = node.loop.counters()
    depths = {"system": now.system_depth, "user": now.user_depth, "completions": now.completions_waiting}
    yield _counter("loop_turns", "Turns made.", now.turns)
    yield _counter("loop_slices", "Slices: how often the loop got the processor from its host.", now.slices)
    yield _counter("loop_failed_turns", "Turns that raised.", now.failed_turns)
    yield _gauge("loop_lane_depth", "Turns that wait, by lane.", depths.items(), "lane")
    yield _gauge("loop_lag_seconds", "How long the oldest waiting turn has waited.", now.oldest_waiting_ms / 1e3)
    yield _gauge("loop_longest_turn_seconds", "The longest turn since the start.", now.longest_turn_ns / 1e9)
    yield _gauge("loop_timers_pending", "Timers that are set.", now.timers_pending)
    yield _gauge("loop_holds", "Reasons besides turns and timers that keep the loop alive.", now.holds)
    if node.watchdog is not None:
        yield from _blocked(node.watchdog)


def _blocked(watchdog: Watchdog) -> Iterator[Metric]:
    totals = watchdog.totals.copy()  # another thread adds to it
    times = [(kind, total.times) for kind, total in totals.items()]
    seconds = [(kind, total.duration_ms / 1e3) for kind, total in totals.items()]
    slow = "How often work blocked the loop for longer than slow_turn_ms."
    yield _counter("loop_slow_turns", slow, watchdog.times_blocked)
    yield _counter("loop_blocked", "How often the loop was blocked, by what kind of work.", times, "kind")
    yield _counter("loop_blocked_seconds", "How long the loop was blocked, by what kind of work.", seconds, "kind")


def _log(node: NodeParts) -> Iterator[Metric]:
    """Commits, how long they take, what the engine is, and whether it can write."""
    log = node.log
    if log is None:
        return
    engine = log.engine
    name = str(getattr(engine, "name", type(engine).__name__))
    reconnects = getattr(engine, "reconnects", 0)
    yield _info("log_engine", "Where the log rests.", engine=name)
    yield _counter("log_commits", "Commits handed to the engine.", log.commits)
    yield _counter("log_failed_commits", "Commits the engine could not make.", log.failed_commits)
    yield _counter("log_operations", "Operations in those commits.", log.operations)
    yield _histogram("log_commit_seconds", "Time until a commit was durable.", log.commit_ns)
    yield _histogram("log_commit_batches", "Writers that shared a commit.", log.commit_batches)
    yield _gauge("log_fault", "1 while the log cannot write.", log.fault is not None)
    yield _counter("log_reconnects", "How often the engine found its server again.", reconnects)
    yield from _log_file(getattr(engine, "path", None))
    yield from _disk(node.bus.disk.state)


def _log_file(path: Path | None) -> Iterator[Metric]:
    """Only an engine with a file can say how large it is, and how much room is left."""
    size = sum(_size(f"{path}{suffix}") for suffix in ("", "-wal")) if path is not None else 0
    yield _gauge("log_size_bytes", "Bytes of the log's file and its journal; 0 without a file.", size)
    if path is not None:
        free = shutil.disk_usage(path.parent).free
        yield _gauge("log_disk_free_bytes", "Bytes free where the log's file is; absent without a file.", free)


def _disk(disk: DiskState | None) -> Iterator[Metric]:
    if disk is not None:
        yield _gauge("log_room_bytes", "Bytes that can still be written, also inside the log's file.", disk.free)
        yield _gauge("log_room_total_bytes", "Bytes of the disk that the log is on.", disk.total)
        yield _gauge("log_room_low", "1 while room is short and the node warns.", disk.state != "ok")
        yield _gauge("log_room_full", "1 while publishes are refused because room is short.", disk.state == "full")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _bus(node: NodeParts, topics: Container[str]) -> Iterator[Metric]:
    """Events, acknowledgements, dead letters, and where the groups stand."""
    groups = node.bus.groups.infos()
    yield from _events(node.bus.stats(), topics)
    yield from _positions(info for info in groups if info.topic in topics)
    yield _gauge("topics", "Topics the node keeps.", len(node.bus.topics.configs()))
    yield _gauge("groups", "Groups of all topics.", len(groups))
    yield _gauge("schedules", "Schedules that are set.", len(node.bus.schedules))


def _events(stats: Stats, topics: Container[str]) -> Iterator[Metric]:
    # In the order in which the node met the topics: a row that has a name keeps it.
    counts = [(topic, count) for topic, count in stats.by_topic.items() if topic in topics]
    published = bounded(((topic,), count.published) for topic, count in counts)
    delivered = bounded(((topic,), count.delivered) for topic, count in counts)
    yield _counter("events_published", "Events stored.", published, "topic")
    yield _counter("events_delivered", "Events sent to consumers.", delivered, "topic")
    yield _counter("acks", "Acknowledgements of consumers.", stats.acks)
    yield _counter("nacks", "Events a consumer gave back.", stats.nacks)
    yield _counter("redeliveries", "Deliveries that were not the first.", stats.redeliveries)
    yield _counter("dead_letters", "Events a group gave up on.", stats.dlq)
    yield _counter("expired_events", "Events that no consumer of a group got in time.", stats.expired)
    refused = "Requests refused because a caller's quota was used up."
    yield _counter("quota_refusals", refused, (stats.refused or {}).items(), "quota")
    yield _counter("damaged_events", "Events that a group could not be given, because they are damaged.", stats.damaged)
    yield _gauge("inflight_events", "Events delivered and not yet acknowledged.", stats.inflight)
    yield _gauge("connections", "WebSocket connections open now.", stats.connections)


def _positions(groups: Iterable[GroupInfo]) -> Iterator[Metric]:
    names = [((info.topic, info.group), info) for info in groups]
    lag = bounded((name, sum(each.lag for each in info.partitions.values())) for name, info in names)
    inflight = bounded((name, sum(each.inflight for each in info.partitions.values())) for name, info in names)
    members = bounded((name, info.members) for name, info in names)
    yield _gauge("group_lag_events", "Events the group has not settled yet.", lag, "topic", "group")
    yield _gauge("group_inflight_events", "Events its members hold.", inflight, "topic", "group")
    yield _gauge("group_members", "Connections of the group.", members, "topic", "group")


def _kernel(node: NodeParts, visible: Callable[[str, str], bool] | None) -> Iterator[Metric]:
    """Requests by type and outcome, how long they take, what waits, and which actors were replaced."""
    kernel = node.kernel
    if kernel is None:
        return
    counted, alive, refused = kernel.counters, kernel.liveness(), kernel.refused.items()
    yield from _requests(kernel, visible)
    yield _counter("kernel_refused", "Messages refused before anybody handled them, by error.", refused, "error")
    yield _gauge("kernel_pending_requests", "Requests without an outcome.", alive["inFlight"])
    yield _gauge("kernel_open_events", "Events that are being handled.", alive["events"])
    yield _gauge("kernel_timers", "Messages that are sent later.", alive["timers"])
    yield _counter("kernel_late_outcomes", "Outcomes that came after the request was closed.", counted["late"])
    yield _counter("kernel_unclaimed", "Outcomes that nobody waited for.", counted["sunk"])
    yield _counter("kernel_faults", "Faults of actors.", counted["faults"])
    yield from _actors(kernel, visible)


def _requests(kernel: Kernel, visible: Callable[[str, str], bool] | None) -> Iterator[Metric]:
    shown = [each for each in kernel.contracts() if visible is None or visible(each.kind, each.type)]
    used = [each for each in shown if each.counts.ns.count]
    passed_on = [each for each in kernel.forwarded_contracts() if visible is None or visible(each.kind, each.type)]
    labels, forwarded = ("kind", "type", "outcome"), _outcomes(passed_on)
    seconds = [((each.kind, each.type), each.counts.ns) for each in used]
    yield _counter("kernel_requests", "Commands and queries that had their outcome.", _outcomes(used), *labels)
    yield _counter("kernel_forwarded", "Requests that were passed on to other nodes.", forwarded, *labels)
    yield _histogram("kernel_request_seconds", "Time until a request had its outcome.", seconds, "kind", "type")


def _outcomes(contracts: Iterable[Contract]) -> list[Row]:
    return [
        ((each.kind, each.type, outcome), count)
        for each in contracts
        for outcome, count in each.counts.outcomes().items()
    ]


def _actors(kernel: Kernel, visible: Callable[[str, str], bool] | None) -> Iterator[Metric]:
    slots = [
        slot
        for slot in kernel.slots
        if visible is None or any(visible(each.kind, each.type) for each in slot.plan.contracts)
    ]
    restarts = [(slot.id, slot.restarts) for slot in slots]
    depths = [(slot.id, slot.waiting) for slot in slots]
    unhealthy = [(slot.id, slot.unhealthy) for slot in slots]
    failed = "1 for a capability that failed too often and is not served."
    yield _counter("kernel_restarts", "Actors that were replaced.", restarts, "capability")
    yield _gauge("kernel_mailbox_depth", "Mail that no actor has begun to handle.", depths, "capability")
    yield _gauge("kernel_unhealthy", failed, unhealthy, "capability")


def _runs(node: NodeParts, *, with_effects: bool) -> Iterator[Metric]:
    """How many runs begin and how they end, the effects they perform, and how often a node lost its own."""
    runtime = node.runtime
    if runtime is None:
        return
    counts = runtime.counts()
    started, outcomes = counts.begun.items(), counts.outcomes.items()
    recovered = "Durable runs that went on after a restart or another node's end."
    performed = "Effects asked of their handlers, by durable runs and by runs a message started."
    late = "Answers and endings that came for runs that were over."
    yield _counter("runs_started", "Runs that this node began to execute, or went on with.", started, "kind")
    yield _counter("runs_outcomes", "Runs that ended: done, failed or cancelled.", outcomes, "kind", "outcome")
    yield _counter("runs_recovered", recovered, counts.recovered)
    yield _gauge("runs_live", "Runs without an outcome that this node executes.", runtime.live)
    yield _counter("runs_steps", "Steps of all programs.", runtime.steps)
    yield _counter("runs_effects", performed, counts.effects.items() if with_effects else (), "effect")
    yield _counter("runs_late_answers", late, runtime.late_completions)
    yield _counter("runs_journal_writes", "Entries written for durable runs.", counts.journal_writes)
    yield _counter("runs_given_up", "Effects with which the process ended too often.", counts.given_up)
    yield _counter("runs_leases_lost", "How often another node took this one's runs away.", counts.leases_lost)


def _beats(node: NodeParts) -> Iterator[Metric]:
    """How many beats, how long they took, and what was in them."""
    heartbeat = node.heartbeat
    if heartbeat is None:
        return
    tally = heartbeat.tally
    diagnostics = tally.diagnostics.items()
    results = "Entries of agendas by result; failed and fatal are faults of enzymes."
    yield _counter("beats", "Beats that happened.", tally.beats)
    yield _counter("beats_failed", "Beats that did not happen and are tried again.", tally.failed)
    yield _counter("beats_signals", "Signals worked on.", tally.signals)
    yield _counter("beats_calls", results, tally.results.items(), "result")
    yield _counter("beats_staged", "Values that beats made visible.", tally.staged)
    yield _counter("beats_emitted", "Signals that enzymes emitted.", tally.emitted)
    yield _counter("beats_diagnostics", "What a person should know of beats, by code.", diagnostics, "code")
    yield _histogram("beat_seconds", "Time from the start of a beat until it was durable.", tally.ns)
    yield _gauge("beats_next", "The number of the next beat.", heartbeat.next_beat)
    yield _gauge("beats_waiting", "Signals that wait for the next beat.", heartbeat.waiting)
    yield _gauge("beats_paused", "1 while signals wait by order.", heartbeat.paused)


def _connections(node: NodeParts) -> Iterator[Metric]:
    """Requests by route and status, and how many are connected to which socket."""
    lines = [each for each in (node.ndjson, node.ndjson_port) if each is not None]
    guests = node.guests
    requests = [((method, route, str(status)), n) for (method, route, status), n in node.requests.items()]
    yield _counter("http_requests", "HTTP requests answered.", requests, "method", "route", "status")
    if node.connections is not None:
        closed = "Connections of the port that the node refused or ended: silent, crowded, full, address, unfinished."
        unfinished = "Bytes of WebSocket frames that are not complete."
        yield _gauge("port_connections", "Connections of the port, WebSockets too.", len(node.connections))
        yield _counter("port_connections_ended", closed, node.connections.closed.items(), "reason")
        yield _gauge("unfinished_frame_bytes", unfinished, node.connections.unfinished)
    if lines:
        accepted = "Clients of the kernel's socket and of kernel_tcp since the start."
        connected = sum(each.connections for each in lines)
        yield _gauge("ndjson_connections", "Clients of the kernel's socket and of kernel_tcp.", connected)
        yield _counter("ndjson_accepted", accepted, sum(each.accepted for each in lines))
    if guests is not None:
        yield _gauge("sysloop_sessions", "Guests of the loop's socket.", guests.guests)
        yield _counter("sysloop_accepted", "Guests of the loop's socket since the start.", guests.accepted)
        yield _counter("sysloop_polls", "How often guests asked to wait.", guests.polls)


def _cluster(node: NodeParts) -> Iterator[Metric]:
    """How many nodes share the log, whether this one belongs to them, and how often a lease was lost."""
    cluster, lost = node.cluster, node.lost_leases
    if cluster is None:
        return
    nodes = cluster.nodes()
    roles = sum(len(each.roles) for each in nodes if each.here)
    yield _gauge("cluster_nodes", "Nodes that hold a lease, this one too.", len(nodes))
    yield _gauge("cluster_in_touch", "1 while this node's own lease is certain.", cluster.in_touch)
    yield _gauge("cluster_roles", "Roles this node has.", roles)
    yield _counter("cluster_fenced", "How often this node lost its lease.", lost.fenced)
    yield _counter("cluster_nodes_gone", "Nodes whose lease ended, by stopping or by silence.", lost.gone)
