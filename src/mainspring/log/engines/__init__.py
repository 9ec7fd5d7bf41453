"""The engines of the log: memory, SQLite, NATS JetStream and MongoDB, found by name in the registry."""
