"""Actors in processes of their own.

- `process`: the node's side: slots, actors and the processes they own
- `child`: the process itself, `python -m mainspring.kernel.processes.child`
- `frames`: what the two sides send to each other
- `locate`: finding a program's function again in the other process
"""
