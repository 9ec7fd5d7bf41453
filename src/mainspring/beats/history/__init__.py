"""Beats that happened.

- `reader`: values and the runtime tree as of a beat, digests, damage; lines of a log seen from outside
- `runtime_tree`: how a journal is read at /rt/...
- `replay`: running old beats again and comparing every byte
- `fork`: a new line from an old beat
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.beats.history.reader import follow as follow
    from mainspring.beats.history.reader import lines_of as lines_of

# Later, because the state of a line uses the runtime tree, and the reader uses the state.
_HOMES: Final = {
    "mainspring.beats.history.reader": "follow lines_of",
}
__getattr__ = lazy_imports(globals(), _HOMES)
