"""What survives the node: durable commands and timers, dead messages, the trace.

- `commands`: accepting, running and finishing durable commands
- `recovery`: those that no living node has are taken over; outcomes whose time is up are removed
- `record`: a command as the log keeps it
- `timers`: messages that are sent later, also when the node was stopped meanwhile
- `dead_messages`: messages that failed and reached nobody, or were given up
- `trace`: headers of messages, for who asks for it
"""
