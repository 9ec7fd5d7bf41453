"""What a guest may open.

- `loop`: `sys/loop@v1`, watches, timers and POLL. `info`: `sys/info@v1`, the machine, its clock and random bytes.
- `event_bus`: `event/bus@v1`, topics in memory.
"""
