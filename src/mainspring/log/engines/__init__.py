"""Where a log can rest.

| module | what it is |
|---|---|
| registry | from an address to an engine; plug-ins by entry point |
| history | what engines on servers share: one history, or a node that stops and keeps what it has seen |
| memory | the log in this process, for one node or, in tests, for several |
| sqlite/ | the log in one file: the default |
| nats/ | the log in a NATS JetStream stream, shared by several nodes (a plug-in) |
| postgres/ | the log in PostgreSQL, shared by several nodes (a plug-in) |
| mongo/ | the log in MongoDB, shared by several nodes (a plug-in) |
"""
