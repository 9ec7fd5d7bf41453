"""The driver's client, set up the way the engine needs it.

Writes wait for a majority and its journals, reads see only what a majority has: what was read once can then never be
taken back. The driver's own retrying of writes is off, because an insert into the journal that is tried again must be
recognised, on every kind of server, and the engine does that itself.
"""

from __future__ import annotations

from typing import Any, Final

from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import ConfigurationError, InvalidURI

from mainspring.errors import SettingError
from mainspring.log.engines.mongo.address import BOOT_MS, Address

_CONNECT_MS: Final = 2_000
_ANSWER_MS: Final = 10_000  # a server that is silent for so long is taken for lost, and asked again


class _Plain(TypeDecoder):
    bson_type = Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


def connect(address: Address) -> Any:
    """A client; nothing is sent yet. Raises `SettingError` for options the driver refuses."""
    wanted: dict[str, Any] = {
        "w": "majority",
        "journal": True,
        "readconcernlevel": "majority",
        "serverselectiontimeoutms": min(BOOT_MS, address.patience_ms),
        "connecttimeoutms": _CONNECT_MS,
        "sockettimeoutms": min(_ANSWER_MS, address.patience_ms),
        "appname": "mainspring",
    }
    if "timeoutms" in address.given:
        del wanted["sockettimeoutms"]
    options = {name: value for name, value in wanted.items() if name not in address.given}
    try:
        return AsyncMongoClient(address.url, retryWrites=False, **options)
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        raise SettingError(
            f"the address of MongoDB cannot be used: {error}", remedy="write mongodb://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from error


def database_of(client: Any, address: Address) -> Any:
    """The log's database. Whole numbers come back as plain ones, whatever their size."""
    options: CodecOptions[dict[str, Any]] = CodecOptions(type_registry=TypeRegistry([_Plain()]))
    return client.get_database(address.database, codec_options=options, read_preference=ReadPreference.PRIMARY)
