"""Beats that happened.

- `reader`: values and the runtime tree as of a beat, digests, damage; lines of a log seen from outside
- `replay`: running old beats again and comparing every byte
- `fork`: a new line from an old beat
"""

from mainspring.beats.history.reader import follow as follow
from mainspring.beats.history.reader import lines_of as lines_of
