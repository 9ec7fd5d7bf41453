"""Wasm guests that follow the Voyd host protocol, as ordinary runs. Needs the extra `mainspring[wasm]`.

    guest = load_wasm(runtime, "program.wasm")
    guest.handle("app::Async", 0, 0xB152D825, lambda effect, ctx: resume(effect.args[0] + 1))
    run = runtime.start(guest.entry("main"), 5)

This package imports nothing of wasmtime before a guest is loaded.

- `guest`: a loaded module, its operations as effects and its exports as programs. `machine`: the only user of wasmtime.
- `tasks`: what a guest spawns, as child runs. `adapters`: what its standard library asks of a host: time, random, log.
- `module`: what a module says about itself. `schema`: values that cross the border. `frames`: the messages.
- `errors`: what can go wrong with a guest.
"""

from mainspring.guests.voyd.errors import GuestFailure, GuestProtocolError, GuestRefused, GuestTrap
from mainspring.guests.voyd.guest import VoydGuest, load_wasm

__all__ = ["GuestFailure", "GuestProtocolError", "GuestRefused", "GuestTrap", "VoydGuest", "load_wasm"]
