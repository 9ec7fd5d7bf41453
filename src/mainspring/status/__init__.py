"""How a node does, for the people who run it.

attention   what needs a person: what failed and will not mend itself, counted
history     figures of the last minutes, hours and days, at regular times, in bounded space
refused     what programs stored in their own transactions and the node refused
sampling    measures the node for its history
"""

from __future__ import annotations

from mainspring.status.attention import Attention, AttentionDesk, Example, Need
from mainspring.status.history import (
    FIGURES,
    HISTORY,
    RANGES,
    HistoryRange,
    HistoryRow,
    NodeHistory,
    group_key,
    read_rows,
)
from mainspring.status.refused import REFUSED, Refusal, RefusedOutgoing, RefusedOutgoings, refusal_of
from mainspring.status.sampling import GroupWatch, Sampler

__all__ = [
    "FIGURES",
    "HISTORY",
    "RANGES",
    "REFUSED",
    "Attention",
    "AttentionDesk",
    "Example",
    "GroupWatch",
    "HistoryRange",
    "HistoryRow",
    "Need",
    "NodeHistory",
    "Refusal",
    "RefusedOutgoing",
    "RefusedOutgoings",
    "Sampler",
    "group_key",
    "read_rows",
    "refusal_of",
]
