"""A real OpenTelemetry collector takes the spans of a node and of its client: `make collector`.

`main.go` is the smallest collector that writes what it got into a file: OTLP in, JSON lines out.
"""
