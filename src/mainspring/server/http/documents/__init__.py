"""Formats that others defined: `openapi`, `asyncapi`, `cloudevents`."""
