"""Codecs: a program gives one to keep its payloads from everybody who has no key.

What the program stores and sends is encoded where it leaves the program, and decoded where it comes back: payloads of
events, data of commands and queries, arguments, journals and outcomes of runs, calls and results of tasks. In between,
in the log, on the wire and on the dashboard, stands a JSON object that says so, with the id of the key:

    {"$encoded": "gAAAAABn...", "key": "2026-11"}

What is not encoded is taken as it is, so that a codec can be given to a program that has run without one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from mainspring.data_types import json_encoder
from mainspring.errors import MainspringError

MEMBER: Final = "$encoded"
KEY_MEMBER: Final = "key"
_START: Final = b'{"$encoded"'
_ANYWHERE: Final = b'"$encoded"'
_MARKS: Final = re.compile(rb'\{"\$encoded":"[A-Za-z0-9+/=]*","key":"(?:[^"\\]|\\.)*"\}')
_PLAIN: Final = (b"null", b"{}")  # nothing that could be hidden; null also deletes a key of a compacted topic
_BUILT_IN: Final = frozenset({"Beat", "Bus", "Event", "Memory", "Run", "Sys", "Syscall", "Timer"})
_MEMBERS: Final = {  # of built-in messages, what is the program's
    "Bus.Publish": "payload",
    "Run.Cancel": "reason",
    "Run.Query": "args",
    "Run.Signal": "value",
    "Run.Start": "args",
    "Run.Update": "args",
}

_read: Final = msgspec.json.Decoder().decode
_write: Final = json_encoder().encode


class Codec(Protocol):
    """Encodes what a program stores and sends, and decodes it again. A program gives it: `App(codec=...)`.

    `key_id` names the key that `encode` uses now, in clear text beside what it made. `decode` gets that name back, so a
    codec can change its key whenever it likes, as long as it still has those that `decode` is asked for. Both are
    called often, from several threads, and must not wait for anything: fetch keys before the program starts.
    """

    @property
    def key_id(self) -> str:
        """The key that `encode` uses now."""
        ...

    def encode(self, data: bytes) -> bytes:
        """What is stored and sent in place of `data`, which is JSON text."""
        ...

    def decode(self, data: bytes, key_id: str) -> bytes:
        """What `encode` was given. Raise an error of any kind when the key is not there, or the data is not whole."""
        ...


class CodecError(MainspringError, code="codec_failed"):
    """The codec could not encode or decode a payload."""


class BadCodec(MainspringError, code="bad_codec"):
    """What was given is not a codec."""


class _Mark(msgspec.Struct):
    encoded: str = msgspec.field(name=MEMBER)
    key: str = ""


_read_mark: Final = msgspec.json.Decoder(_Mark).decode


def starts_encoded(text: bytes) -> bool:
    """Whether this JSON text is what a codec has encoded."""
    return text.startswith(_START)


def is_encoded(value: Any) -> bool:
    """Whether this JSON value stands for one that a codec has encoded."""
    return isinstance(value, dict) and isinstance(value.get(MEMBER), str) and value.keys() <= {MEMBER, KEY_MEMBER}


class Encoding:
    """A codec at work: from JSON text to the marked object, and back."""

    def __init__(self, codec: Codec) -> None:
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise BadCodec(
                    f"{type(codec).__name__} is not a codec: it has no method {name}",
                    remedy="a codec has key_id, encode(data) and decode(data, key_id); see mainspring.Codec",
                )
        if not isinstance(getattr(codec, "key_id", None), str):
            raise BadCodec(
                f"{type(codec).__name__} is not a codec: its key_id is not text",
                remedy="name the key that encode uses; a codec without keys names its method",
            )
        self.codec = codec

    # -- JSON text

    def seal(self, text: bytes | msgspec.Raw) -> bytes:
        """The marked object as JSON text. What is marked already stays as it is, and so does null."""
        given = bytes(text)
        if given in _PLAIN or given.startswith(_START):
            return given
        key = self.codec.key_id
        try:
            encoded = base64.b64encode(self.codec.encode(given))
        except Exception as error:
            raise CodecError(f"the codec could not encode with the key {key!r}: {type(error).__name__}") from error
        return b'{"$encoded":"%b","key":%b}' % (encoded, _write(key))

    def open(self, text: bytes | msgspec.Raw) -> bytes:
        """The JSON text again, with every marked object in it decoded. Raises CodecError."""
        given = bytes(text)
        if given.startswith(_START):
            return self._decoded(_read_mark(given))
        if _ANYWHERE in given:
            return _write(self.open_value(_read(given)))
        return given

    def _decoded(self, mark: _Mark) -> bytes:
        try:
            return bytes(self.codec.decode(base64.b64decode(mark.encoded, validate=True), mark.key))
        except binascii.Error:
            raise CodecError("what is marked as encoded is not base64") from None
        except Exception as error:
            raise CodecError(
                f"what was encoded with the key {mark.key!r} could not be decoded: {type(error).__name__}",
                remedy="give the codec this key, or see whether the payload was changed",
            ) from error

    def reencode(self, text: bytes) -> bytes:
        """JSON text in which everything that is encoded is encoded with the current key. Raises CodecError."""
        return _MARKS.sub(lambda found: self.seal(self.open(found[0])), text) if _ANYWHERE in text else text

    # -- values

    def seal_value(self, value: Any) -> Any:
        """A value as the marked object, ready to become JSON."""
        return _read(self.seal(_write(value)))

    def open_value(self, value: Any) -> Any:
        """A value from JSON with every marked object in it decoded."""
        if isinstance(value, dict):
            if is_encoded(value):
                return _read(self._decoded(_Mark(value[MEMBER], str(value.get(KEY_MEMBER, "")))))
            return {name: self.open_value(each) for name, each in value.items()}
        return [self.open_value(each) for each in value] if isinstance(value, list) else value

    def readable(self, value: Any) -> Any:
        """`open_value` for lists that people read: what cannot be decoded stays as it is."""
        if isinstance(value, dict):
            if is_encoded(value):
                with suppress(CodecError):
                    return self.open_value(value)
                return value
            return {name: self.readable(each) for name, each in value.items()}
        return [self.readable(each) for each in value] if isinstance(value, list) else value

    def decoder(self, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A decoder of JSON text that also takes what is encoded."""
        return lambda text: decode(self.open(text))

    def around(self, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function of JSON values that gets them decoded; what it returns is encoded if they were."""

        def call(value: Any) -> Any:
            changed = change(self.open_value(value))
            return self.seal_value(changed) if is_encoded(value) else changed

        return call

    # -- messages

    def seal_data(self, type: str, text: bytes | msgspec.Raw) -> msgspec.Raw:
        """The data of a message of this type as it leaves a program. Of built-in ones only what is the program's."""
        if type.partition(".")[0] not in _BUILT_IN:
            return msgspec.Raw(self.seal(text))
        member = _MEMBERS.get(type)
        data = None if member is None else _read(bytes(text))
        if not isinstance(data, dict) or member not in data:
            return msgspec.Raw(bytes(text))
        return msgspec.Raw(_write({**data, member: self._sealed_member(data[member], each=member == "args")}))

    def _sealed_member(self, value: Any, *, each: bool) -> Any:
        return [self.seal_value(one) for one in value] if each and isinstance(value, list) else self.seal_value(value)

    def seal_members(self, value: Any, names: frozenset[str]) -> Any:
        """A JSON value with the members of these names encoded, wherever they stand."""
        if isinstance(value, dict):
            return {
                name: self.seal_value(each) if name in names else self.seal_members(each, names)
                for name, each in value.items()
            }
        return [self.seal_members(each, names) for each in value] if isinstance(value, list) else value


def encoding_of(codec: Codec | None) -> Encoding | None:
    """The codec at work. Raises BadCodec."""
    return None if codec is None else Encoding(codec)
