"""Clients that openapi-generator makes of the node's own OpenAPI document: `make generators`.

Each is compiled and executed against a node: it publishes an event, reads it, and is told why something is refused.
"""
