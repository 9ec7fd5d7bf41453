"""A line of beats that several nodes share.

- `line`: one node's access to the line: leading, following, handing over
- `signal_topic`: the topic through which signals, bindings and pauses reach the leader
"""
