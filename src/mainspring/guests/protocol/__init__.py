"""ZCL1 as bytes, for both sides of the wire.

- `zcl1`: frames. `operations`: the requests of `sys/loop@v1` and their layouts.
- `control`: single frames outside any handle. `stream`: requests and responses of one capability, without I/O.
"""
