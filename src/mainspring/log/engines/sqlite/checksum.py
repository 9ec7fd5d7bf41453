"""CRC-32 over what must not change. `zlib.crc32` runs at memory speed; a cryptographic digest would guard against a
forger, but whoever can write the file can write a digest too. What happens to files is rot and torn pages."""

from __future__ import annotations

from zlib import crc32


def event_checksum(pos: int, ts: int, id: str, key: str | None, headers: bytes | None, payload: bytes) -> int:
    """Of the text `pos ts id =key` (the last word only with a key), then headers (if any), then payload.

    Raises `UnicodeEncodeError` when id or key hold lone surrogates.
    """
    crc = crc32((f"{pos} {ts} {id}" if key is None else f"{pos} {ts} {id} ={key}").encode())
    if headers is not None:
        crc = crc32(headers, crc32(b"=", crc))
    return crc32(payload, crc)


def record_checksum(space: str, key: str, version: int, value: bytes) -> int:
    """Of the text `version space key`, then the value. Raises `UnicodeEncodeError` like `event_checksum`."""
    return crc32(value, crc32(f"{version} {space} {key}".encode()))
