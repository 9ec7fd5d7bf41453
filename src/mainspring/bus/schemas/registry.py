"""What the payloads of a topic look like: a JSON Schema per version, kept in the log.

A topic without a schema takes any payload. With one, every event that is published is checked against the latest
version, or against the one its header `x-schema-version` names, so that producers can move to a new version one by
one; what was checked is written into that header. Nothing that does not fit is stored. A payload of null in a compacted
topic is a tombstone and passes.

Versions count from 1 and never change. A new one must be compatible with the one before, in the way the topic asks:
`backward` (the new schema reads what the old one wrote), `forward` (the old one reads what the new one writes), `full`
(both) or `none`. The same schema again is the version that is there.

To compile a schema and to compare two takes time, so it is done in a thread, one at a time: publishing does not wait.

The reasons are in docs/decisions/schemas.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, get_args

import msgspec

from mainspring.bus.errors import BadSchema, Conflict, SchemaIncompatible, SchemaMismatch, Unavailable, UnknownSchema
from mainspring.bus.names import SEPARATOR, check_name
from mainspring.bus.protocol import OfferedEvent
from mainspring.bus.schemas.compatibility import Schema, differences
from mainspring.bus.schemas.validator import SchemaValidator, TypeValidator, Validator, schema_of
from mainspring.codec import CodecError, starts_encoded
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, ANY_VERSION, Batch, KeptRecord, Log, Refused
from mainspring.loop import Clock, HandlerThreads

SPACE: Final = "schemas"
SCHEMA_HEADER: Final = "x-schema-version"
MAX_VERSIONS: Final = 9_999
SHOWN: Final = 3  # differences in a message; `details` has all

Compatibility = Literal["none", "backward", "forward", "full"]
MODES: Final = get_args(Compatibility)
DEFAULT_MODE: Final = "backward"


class SchemaVersion(msgspec.Struct, frozen=True, rename="camel"):
    """One version of a topic's schema. `compatibility` is what the next version must keep to."""

    topic: str
    version: int
    compatibility: Compatibility
    schema: dict[str, Any] | bool
    created_ms: int


class SchemaCheck(msgspec.Struct, frozen=True):
    """Whether a schema could be the next version, and if not, why. `against` is the version compared with, 0: none."""

    compatible: bool
    compatibility: Compatibility
    against: int
    differences: list[str]


_decode = msgspec.json.Decoder(SchemaVersion).decode


class _Version:
    """A version with its validator, which is made when it is first needed."""

    def __init__(self, info: SchemaVersion, validator: Validator | None = None) -> None:
        self.info = info
        self.stamp = b'"%b":"%d"' % (SCHEMA_HEADER.encode(), info.version)
        if validator is not None:
            self.validator = validator

    @cached_property
    def validator(self) -> Validator:
        return SchemaValidator(self.info.schema)


class TopicSchemas:
    """The versions of one topic, ascending; there is at least one."""

    def __init__(self, topic: str, registry: SchemaRegistry) -> None:
        self.topic = topic
        self._registry = registry
        self._versions: list[_Version] = []

    @property
    def versions(self) -> list[SchemaVersion]:
        return [version.info for version in self._versions]

    @property
    def latest(self) -> SchemaVersion:
        return self._versions[-1].info

    def put(self, info: SchemaVersion, validator: Validator | None = None) -> None:
        """Keep a version, as a new one or in place of the one of this number."""
        while info.version > len(self._versions) + 1:  # one that cannot be read: nothing is known to be wrong by it
            missing = msgspec.structs.replace(info, version=len(self._versions) + 1, schema=True)
            self._versions.append(_Version(missing))
        if info.version > len(self._versions):
            self._versions.append(_Version(info, validator))
            return
        version = self._versions[info.version - 1]
        version.info = info
        if validator is not None:
            version.validator = validator

    def check_all(self, events: Sequence[OfferedEvent], *, tombstones: bool) -> list[bytes]:
        """What `check` gives, for each event. The event that does not fit is named, where there are several."""
        latest = self._versions[-1]
        fault, stamp, opens = latest.validator.fault, latest.stamp, self._registry.open_payload is not None
        stamps = []
        for number, event in enumerate(events):
            # the common case, without further questions
            if event.headers is None and not opens and fault(event.payload) is None:
                stamps.append(stamp)
                continue
            try:
                stamps.append(self.check(bytes(event.payload), event.headers, tombstones=tombstones))
            except SchemaMismatch as error:
                if len(events) > 1:
                    error.message = f"event {number} of the batch: {error.message}"
                    error.details = {**error.details, "event": number}
                raise
        return stamps

    def check(self, payload: bytes, headers: Mapping[str, str] | None, *, tombstones: bool = False) -> bytes:
        """The header to add to the event, as the text of a JSON member; empty when the event has it already.

        Raises SchemaMismatch with the path of the first fault.
        """
        version = self._versions[-1]
        named = None if headers is None else headers.get(SCHEMA_HEADER)
        if named is not None:
            version = self._version_named(named)
        if not (tombstones and payload == b"null"):
            text = self._readable(payload, version)
            fault = None if text is None else version.validator.fault(text)
            if fault is not None:
                number = version.info.version
                raise SchemaMismatch(
                    f"the payload does not fit version {number} of the schema of {self.topic!r}: {fault}",
                    remedy=f"`mainspring schemas show {self.topic} --version {number}` shows the schema",
                    path=fault.path,
                    version=number,
                )
        return version.stamp if named is None else b""

    def _readable(self, payload: bytes, version: _Version) -> bytes | None:
        """The payload that a codec may have encoded; None: nobody here can read it. Raises SchemaMismatch."""
        if not starts_encoded(payload):
            return payload
        if self._registry.open_payload is None:
            return None
        try:
            return self._registry.open_payload(payload)
        except CodecError as error:
            raise SchemaMismatch(error.message, remedy=error.remedy, path="", version=version.info.version) from None

    def _version_named(self, text: str) -> _Version:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if not 1 <= number <= len(self._versions):
            raise SchemaMismatch(
                f"the schema of {self.topic!r} has the versions 1 to {len(self._versions)}",
                remedy=f"name one of them in {SCHEMA_HEADER}, or leave the header out for the latest",
                path="",
            )
        return self._versions[number - 1]


class SchemaRegistry:
    """The schemas of all topics."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._threads = HandlerThreads(1)
        self._topics: dict[str, TopicSchemas] = {}
        self.open_payload: Callable[[bytes], bytes] | None = None  # decodes what the program's codec has encoded
        self.expected: dict[str, Schema] = {}  # topic -> what the program's own consumers say they get
        # asked for every publish, so it is the dictionary itself
        self.of: Callable[[str], TopicSchemas | None] = self._topics.get

    async def start(self) -> None:
        """Read what is registered."""
        async for record in self._log.scan(SPACE):
            self._put(_decode(record.value))

    def close(self) -> None:
        """End the thread that compiles and compares."""
        self._threads.close()

    def all(self) -> list[TopicSchemas]:
        """Every topic that has a schema, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get(self, topic: str, version: int | None = None) -> SchemaVersion:
        """One version, or the latest. Raises UnknownSchema."""
        schemas = self._topics.get(topic)
        if schemas is None:
            raise UnknownSchema(f"topic {topic!r} has no schema", remedy="register one; without, any payload is taken")
        if version is None:
            return schemas.latest
        versions = schemas.versions
        if not 1 <= version <= len(versions):
            raise UnknownSchema(f"the schema of {topic!r} has the versions 1 to {len(versions)}")
        return versions[version - 1]

    async def check(self, topic: str, schema: Schema, compatibility: Compatibility | None = None) -> SchemaCheck:
        """Whether this could be the topic's next version. Raises BadSchema for what is no schema at all."""
        await self._threads.call(SchemaValidator, schema)
        return await self._compare(topic, schema, compatibility)

    async def _compare(self, topic: str, schema: Schema, compatibility: Compatibility | None) -> SchemaCheck:
        schemas = self._topics.get(topic)
        if schemas is None:
            return SchemaCheck(True, compatibility or DEFAULT_MODE, 0, [])
        old, mode = schemas.latest, compatibility or schemas.latest.compatibility
        checked: SchemaCheck = await self._threads.call(_check, old, schema, mode)
        return checked

    async def register(
        self, topic: str, schema_or_type: Any, compatibility: Compatibility | None = None
    ) -> tuple[SchemaVersion, bool]:
        """Make a JSON Schema, or a Python type, the latest version; durable when it returns.

        Gives the version, and whether it is new. Raises SchemaIncompatible, BadSchema, Conflict, Unavailable.
        """
        check_name("topic", topic)
        if compatibility is not None and compatibility not in MODES:
            raise BadSchema(f"{compatibility!r} is not a compatibility", remedy=f"use one of: {', '.join(MODES)}")
        schema, validator = await self._threads.call(_schema_and_validator, schema_or_type)
        schemas = self._topics.get(topic)
        for info in schemas.versions if schemas is not None else ():
            if info.schema == schema:
                return await self._register_again(info, validator, compatibility), False
        checked = await self._compare(topic, schema, compatibility)
        if not checked.compatible:
            shown = "; ".join(checked.differences[:SHOWN])
            more = f"; and {len(checked.differences) - SHOWN} more" if len(checked.differences) > SHOWN else ""
            raise SchemaIncompatible(
                f"the schema is not {checked.compatibility} compatible with version {checked.against}: {shown}{more}",
                remedy="keep what others rely on, publish to a new topic, or register with another compatibility",
                differences=checked.differences,
            )
        number = checked.against + 1
        if number > MAX_VERSIONS:
            raise Conflict(f"the schema of {topic!r} has {MAX_VERSIONS} versions", remedy="use a new topic")
        info = SchemaVersion(topic, number, checked.compatibility, schema, self._clock.wall_ms())
        await self._store(info, expect=ABSENT)
        self._put(info, validator)
        return info, True

    async def _register_again(
        self, info: SchemaVersion, validator: Validator, compatibility: Compatibility | None
    ) -> SchemaVersion:
        """A schema that is there. What the next one must keep to may change with it."""
        if compatibility is not None and compatibility != info.compatibility:
            info = msgspec.structs.replace(info, compatibility=compatibility)
            await self._store(info)
        self._put(info, validator)
        return info

    async def _store(self, info: SchemaVersion, expect: int = ANY_VERSION) -> None:
        batch = Batch()
        batch.put(SPACE, f"{info.topic}{SEPARATOR}{info.version:04d}", msgspec.json.encode(info), expect=expect)
        try:
            await self._log.commit(batch)
        except Refused:
            raise Conflict(
                "someone registered a schema for this topic just now", remedy="look, and try again"
            ) from None
        except MainspringError as error:
            raise Unavailable(f"the schema could not be stored: {error.message}", remedy=error.remedy) from error

    async def delete(self, topic: str) -> None:
        """Forget every version of a topic's schema; durable when it returns."""
        schemas = self._topics.get(topic)
        if schemas is not None:
            batch = Batch()
            for info in schemas.versions:
                batch.delete(SPACE, f"{topic}{SEPARATOR}{info.version:04d}")
            await self._log.commit(batch)
            self._topics.pop(topic, None)

    def on_changed(self, record: KeptRecord) -> None:
        """A version was registered or changed, or all were deleted with their topic, here or on another node."""
        if record.version == ABSENT:
            self._topics.pop(record.key.rpartition(SEPARATOR)[0], None)
        else:
            self._put(_decode(record.value))

    def _put(self, info: SchemaVersion, validator: Validator | None = None) -> None:
        self._topics.setdefault(info.topic, TopicSchemas(info.topic, self)).put(info, validator)


def _check(old: SchemaVersion, schema: Schema, mode: Compatibility) -> SchemaCheck:
    """Whether a schema keeps to what the version before promises."""
    broken: list[str] = []
    if mode in ("backward", "full"):
        found = differences(old.schema, schema)
        broken += [f"version {old.version} wrote, the new one reads: {one}" for one in found]
    if mode in ("forward", "full"):
        found = differences(schema, old.schema)
        broken += [f"the new one writes, version {old.version} reads: {one}" for one in found]
    return SchemaCheck(not broken, mode, old.version, broken)


def _schema_and_validator(schema_or_type: Any) -> tuple[Schema, Validator]:
    """A schema as plain data, and what checks payloads against it."""
    if isinstance(schema_or_type, (dict, bool)):
        return schema_or_type, SchemaValidator(schema_or_type)
    return schema_of(schema_or_type), TypeValidator(schema_or_type)


def read_schema(key: str, value: bytes) -> None:
    """Raise where a record is not the version of a schema that its key names."""
    info = _decode(value)
    if not 1 <= info.version <= MAX_VERSIONS or key != f"{info.topic}{SEPARATOR}{info.version:04d}":
        raise ValueError("it is of another topic or version")
