"""Which node executes a durable run, alone on a log or among several that share it.

- `ownership`: all that differs between a log of one's own and a shared one
- `placement`: which living nodes have a program, and which of them takes a run
- `takeover`: what happens to runs when a node dies
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.runs.cluster.placement import PLACEMENT_READERS as PLACEMENT_READERS

_HOMES: Final = {"mainspring.runs.cluster.placement": "PLACEMENT_READERS"}
__getattr__ = lazy_imports(globals(), _HOMES)
