"""Wasm guests that follow the Voyd host protocol, as ordinary runs. Needs the extra `mainspring[wasm]`.

    guest = load_wasm(runtime, "program.wasm")
    guest.handle("app::Async", 0, 0xB152D825, lambda effect, ctx: resume(effect.args[0] + 1))
    run = runtime.start(guest.entry("main"), 5)

This package imports nothing of wasmtime before a guest is loaded.
"""

from mainspring.guests.voyd.errors import GuestFailure, GuestRefused, GuestTrap, ProtocolError
from mainspring.guests.voyd.guest import Guest, load_wasm

__all__ = ["Guest", "GuestFailure", "GuestRefused", "GuestTrap", "ProtocolError", "load_wasm"]
