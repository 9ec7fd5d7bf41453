"""The cases of the Autobahn test suite for WebSocket, for the Python client's implementation and for the node's.

`make autobahn` runs them all; `tests/process/http/test_websocket_cases.py` runs a short set of our own in every suite.
Autobahn sends frames and judges the echoes, so both sides echo here: `echo` holds the client's connection and the
node's face with an echo in the place of the bus.
"""
