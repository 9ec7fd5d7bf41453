"""From a signal and a target to the enzymes that run, in order.

- `path`: paths, queries and what their segments mean
- `registry`: enzymes under their queries, and changes of registry and bindings
- `index`: finds the queries that match a signal
- `bindings`: which names a target is bound to
- `agenda`: candidates of a pair, their order, and cycles among them
"""
