"""Which node executes a durable run, alone on a log or among several that share it.

- `ownership`: all that differs between a log of one's own and a shared one
- `placement`: which living nodes have a program, and which of them takes a run
- `takeover`: what happens to runs when a node dies
"""
