"""Every topic of the node, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.bus.errors import Conflict, Unavailable, UnknownTopic
from mainspring.bus.names import check_name
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.bus.schemas.upcasting import Step, Upcaster
from mainspring.bus.topics.config import (
    MAX_PARTITIONS,
    UNDECLARED,
    DeclaredGroup,
    TopicChange,
    TopicConfig,
    encode_topic,
    parse_topic,
)
from mainspring.bus.topics.tail import PartitionTail, SharedPartitionTail, TailBudget
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, ANY_VERSION, Batch, KeptRecord, Log, Refused
from mainspring.loop import Clock
from mainspring.settings import Settings

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group

SPACE = "topics"

# What the node itself writes is bounded: a day, and not more than so many events.
KEPT_MS = 86_400_000
KEPT_EVENTS = 100_000
OWN_TOPICS = ("system.metrics", "system.bus.audit", "system.bus.dlq")


class TopicRegistry:
    """Finds topics, makes implied ones, keeps their settings in the log."""

    def __init__(self, log: Log, clock: Clock, settings: Settings, *, shared: bool = False) -> None:
        """`shared`: other nodes write topics to this log, too; `on_changed` is called with what they write."""
        self._log = log
        self._clock = clock
        self._settings = settings
        self._shared = shared
        self.max_positions: int = settings.max_positions  # groups times partitions of one topic
        self._topics: dict[str, Topic] = {}
        self.closed: set[str] = set()  # topics whose settings cannot be read
        self._budget = TailBudget()
        self._upcasters: dict[str, Upcaster] = {}
        self.declared: Callable[[str, str], DeclaredGroup] = lambda _topic, _group: UNDECLARED
        self.on_new: list[Callable[[str], object]] = []  # called with the name of a topic that begins to exist
        self.remote_max_attempts: Callable[[str, str], int] = lambda _topic, _group: 0  # by consumers of other nodes

    async def start(self) -> None:
        async for record in self._log.scan(SPACE):
            self._add(parse_topic(record.value), stored=True).version = record.version
        for space, name in list(self._log.records.found):
            if space == SPACE:
                await self._add_closed(name)
        for name in OWN_TOPICS:
            if name not in self._topics:
                self._add(TopicConfig(topic=name, retention_ms=KEPT_MS, retention_count=KEPT_EVENTS), stored=False)

    async def _add_closed(self, name: str) -> None:
        """A topic whose settings cannot be read: who may use it is not known, so that only an admin may."""
        partitions = max((bounds.partition + 1 for bounds in await self._log.bounds(name)), default=1)
        self._add(TopicConfig(topic=name, partitions=min(partitions, MAX_PARTITIONS)), stored=True)
        self.closed.add(name)

    def _add(self, config: TopicConfig, *, stored: bool) -> Topic:
        make_tail = SharedPartitionTail if self._shared else PartitionTail
        topic = Topic(config, self._budget, self._clock.now_ms(), stored=stored, make_tail=make_tail)
        self._topics[topic.name] = topic
        if topic.name in self._upcasters:
            topic.read_with(self._upcasters[topic.name])
        return topic

    def all(self) -> list[Topic]:
        return list(self._topics.values())

    def configs(self) -> list[TopicConfig]:
        """The settings of every topic that exists, by name: created, published to or subscribed to."""
        return [topic.config for _, topic in sorted(self._topics.items()) if topic.exists]

    def config_of(self, name: str) -> TopicConfig:
        """The settings of a topic; the defaults where there is none."""
        topic = self._topics.get(name)
        return TopicConfig(topic=name) if topic is None else topic.config

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find_or_add(self, name: str) -> Topic:
        """The topic of events that are in the log already, however many topics there are."""
        return self._topics.get(name) or self._add(TopicConfig(topic=name), stored=False)

    def get(self, name: str) -> Topic:
        """The topic; raises UnknownTopic for one that was never created or used."""
        topic = self._topics.get(name)
        if topic is None or not topic.exists:
            check_name("topic", name)
            raise UnknownTopic(f"there is no topic {name!r}", remedy="create it, or publish to it")
        return topic

    def open(self, name: str, quota: Quota = UNLIMITED) -> Topic:
        """The topic; made with default settings when it is new, and then counted. Raises BadFrame for a bad name."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_name("topic", name)
        if len(self._topics) >= self._settings.max_topics:
            raise Unavailable(
                f"the node has {len(self._topics)} topics already", remedy="use fewer topics, or raise max_topics"
            )
        quota.take("topics")
        return self._add(TopicConfig(topic=name), stored=False)

    def drop_unused(self, topic: Topic, quota: Quota = UNLIMITED) -> None:
        """Forget a topic that was opened for a request which was then refused; nobody else has seen it."""
        if not topic.exists and self._topics.get(topic.name) is topic and topic.name not in OWN_TOPICS:
            del self._topics[topic.name]
            quota.give_back("topics")

    def settings_after(self, change: bytes) -> TopicConfig:
        """A topic's settings as this JSON text changes them; what it does not mention stays. Raises BadFrame."""
        config = parse_topic(change)
        topic = self._topics.get(config.topic)
        return config if topic is None else parse_topic(change, topic.config)

    def add_upcaster(self, name: str, version: int, step: Step) -> None:
        """Turn payloads of this version into payloads of the next when they are read."""
        check_name("topic", name)
        upcaster = self._upcasters.setdefault(name, Upcaster(name))
        upcaster.add(version, step)
        if name in self._topics:
            self._topics[name].read_with(upcaster)

    async def load(self, topic: Topic) -> None:
        """Make sure that the offsets of the topic's tails are loaded."""
        if not topic.loaded:
            topic.set_bounds(await self._log.bounds(topic.name))

    async def put(self, config: TopicConfig) -> TopicChange:
        """Create or change; durable when it returns. Raises Conflict when partitions would shrink."""
        topic = self._topics.get(config.topic)
        created = topic is None or not (topic.stored or topic.published)
        if topic is None:
            topic = self.open(config.topic)
        elif config.partitions < topic.config.partitions:
            raise Conflict(
                f"topic {config.topic!r} has {topic.config.partitions} partitions; they only grow",
                remedy=f"ask for {topic.config.partitions} or more, or create another topic",
            )
        try:
            await self._log.commit(_put(config, topic.version if self._shared else ANY_VERSION))
        except Refused:  # another node was faster: its partitions must not shrink either
            record = await self._log.get(SPACE, config.topic)
            if record is not None:
                self.on_changed(KeptRecord(SPACE, record.key, record.value, record.version))
            return await self.put(config)
        except MainspringError as error:
            raise Unavailable(f"the settings could not be stored: {error.message}", remedy=error.remedy) from error
        if config.partitions < len(topic.tails):  # grown meanwhile by someone else
            raise Conflict(f"topic {config.topic!r} was changed at the same time", remedy="try again")
        topic.stored = True
        self._configure(topic, config)
        if created:
            self._appeared(topic)
        return TopicChange(config, created)

    async def purge(self, topic: Topic) -> int:
        """Remove every event that is stored now; how many. Groups go on behind them."""
        removed = 0
        for bounds in await self._log.bounds(topic.name):
            removed += bounds.events
            await self._log.trim(topic.name, bounds.partition, bounds.tail + 1)
            if bounds.partition < len(topic.tails):
                tail = topic.tails[bounds.partition]
                tail.kept_from = max(tail.kept_from, bounds.tail + 1)
                tail.forget()
        return removed

    async def delete(self, topic: Topic) -> None:
        """Remove the events and the settings of a topic without groups; durable when it returns.

        What is published meanwhile is either removed with the rest or makes the topic anew.
        """
        await self.purge(topic)
        ends = await self._log.bounds(topic.name)
        topic.retire()
        batch = Batch()
        batch.delete(SPACE, topic.name)
        await self._log.commit(batch)
        for end in ends:
            await self._log.trim(topic.name, end.partition, end.tail + 1)
        if topic.stored:
            await self._log.commit(_put(topic.config, ANY_VERSION))

    def _appeared(self, topic: Topic) -> None:
        for listener in self.on_new:
            listener(topic.name)

    def _configure(self, topic: Topic, config: TopicConfig) -> None:
        self.closed.discard(topic.name)
        if topic.config != config:
            topic.configure(config, self._clock.now_ms())
        for group in topic.groups.values():
            self.apply(topic, group)

    def store_new(self, batch: Batch, topic: Topic) -> None:
        """Store a topic that exists because someone publishes to it, with the batch of its first event.

        Where another node may create it at the same time with other settings, theirs must stand: then the default ones
        are a batch of their own, which may be refused.
        """
        self._appeared(topic)
        if not self._shared:
            batch.put(SPACE, topic.name, encode_topic(topic.config))
        elif topic.version == ABSENT:
            self._log.submit(_put(topic.config, ABSENT), lambda _: None)

    def on_changed(self, record: KeptRecord) -> Topic | None:
        """A topic was created or changed, here or on another node. Gives the topic, unless it is as before."""
        topic = self._topics.get(record.key)
        if record.version == ABSENT:
            if topic is not None:
                topic.retire()
            return None
        if record.version <= (ABSENT if topic is None else topic.version):
            return None
        config = parse_topic(record.value)
        if topic is None:
            topic = self._add(config, stored=True)
        is_new = not topic.stored or topic.version == ABSENT
        topic.version, topic.stored = record.version, True
        self._configure(topic, config)
        if is_new:
            self._appeared(topic)
        return topic

    def apply(self, topic: Topic, group: Group) -> None:
        """The topic's settings as they concern a group."""
        group.ack_timeout_ms = topic.config.ack_timeout_ms or self._settings.ack_timeout_ms
        declared = self.declared(topic.name, group.name)
        attempts = declared.max_attempts or self.remote_max_attempts(topic.name, group.name)
        limit = attempts or topic.config.max_attempts or self._settings.max_attempts
        group.max_attempts = limit if topic.has_dead_letters else 0
        group.choice.most = declared.concurrency


def _put(config: TopicConfig, expect: int) -> Batch:
    batch = Batch()
    batch.put(SPACE, config.topic, encode_topic(config), expect=expect)
    return batch


def read_topic(key: str, value: bytes) -> None:
    """Raise where a record is not the settings of the topic that its key names."""
    if parse_topic(value).topic != key:
        raise ValueError("the settings are of another topic")
