"""Where a group starts, or is sent to: the protocol's `from`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mainspring.bus.errors import BadFrame

Position53 = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # what every JSON reader can hold exactly


class Start(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """`latest`: behind the tail. `offset`: at `value` (0 and 1: the beginning). `timestamp`: at the first event whose
    `ts` is `value` (epoch ms) or later.

    In SUBSCRIBE, `latest` and offset 0 only say where a *new* group starts; any other start moves the whole group.
    """

    kind: Literal["latest", "offset", "timestamp"]
    value: Position53 | None = None

    def checked(self) -> Start:
        """Itself; raises BadFrame when a timestamp has no value."""
        if self.kind == "timestamp" and self.value is None:
            raise BadFrame("a start by timestamp needs a value", remedy="give epoch milliseconds as `value`")
        return self


BEGINNING = Start("offset", 0)
LATEST = Start("latest")
