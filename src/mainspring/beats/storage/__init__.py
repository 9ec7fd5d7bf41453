"""How a line of beats is stored.

- `cells`: values in one spelling, the versions of every path, the content store
- `journal`: one record per fact of a beat, and the digest that chains beats
- `line`: the records of a line in the log, and what has to be written with the next beat
"""
