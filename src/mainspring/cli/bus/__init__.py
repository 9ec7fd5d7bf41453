"""Commands about topics, events and what lies around the bus.

- `topics`, `groups`, `schemas`, `token`: look at and change what a node knows
- `pub`, `sub`, `tail` (with `filters`): events
- `dlq`: dead letters
- `outbox`: carry rows of a program's own database to the bus
- `worker`: run the tasks of a queue
"""
