"""Formats that others defined: OpenAPI, AsyncAPI, CloudEvents, server-sent events."""
