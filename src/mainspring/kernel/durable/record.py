"""A durable command as the log keeps it, from its acceptance until its outcome may be forgotten.

Nodes of different versions read each other's: members are only added, with defaults, and unknown ones are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mainspring.message import Message

SPACE: Final = "commands"
NO_EPOCH: Final = 0  # of a node that is alone on its log


class StoredCommand(msgspec.Struct):
    """One accepted command. Its key is its id."""

    sequence: int  # in the order of acceptance, of one node
    capability: str
    message: Message
    outcome: Message | None = None
    until_ms: int = 0  # epoch; when the outcome may be forgotten
    epoch: int = NO_EPOCH  # of the node that has it
    begun: int = 0  # how often it was begun again because a process had ended without an outcome of it


encode_command: Callable[[StoredCommand], bytes] = msgspec.json.Encoder().encode
decode_command: Callable[[bytes], StoredCommand] = msgspec.json.Decoder(StoredCommand).decode


def read_command(key: str, value: bytes) -> None:
    """Raise where a record is not the durable command that its key names."""
    if decode_command(value).message.metadata.id != key:
        raise ValueError("it is of another command")
