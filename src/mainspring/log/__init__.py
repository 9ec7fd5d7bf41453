"""The durable log: one contract, several engines."""
