"""`sys/loop@v1`: one place to wait, for guests that speak ZCL1.

A `Guest` lives in this process. Guests in other processes use `connect` and the node's loop socket; both wait for
readiness of descriptors (WATCH) and for timers (TIMER_ARM) with one call (POLL). WebAssembly modules that follow the
Voyd host protocol are hosted as runs: `load_wasm`.

Optional: nothing else of Mainspring imports this package before a loop socket is opened or a wasm program is loaded.

- `guest`: a guest in this process. `client`: the Python client of a loop, here or in a node.
- `handles`: the numbers under which a guest uses descriptors and streams.
- `wasm`: runs a WebAssembly module as a guest, with limits.
- `errors`: what host programs and clients can meet.
- `protocol/`: ZCL1 frames, operations, result codes, control frames, request streams.
- `capabilities/`: what a guest may open: `sys/loop`, `sys/info`, `event/bus`.
- `socket/`: the loop socket, for guests in other processes.
- `voyd/`: WebAssembly programs of the Voyd host protocol, as runs.
"""

from typing import TYPE_CHECKING, Final

from mainspring.guests.errors import Code as Code
from mainspring.guests.errors import NeedsLinux as NeedsLinux
from mainspring.guests.errors import NotAttachable as NotAttachable
from mainspring.guests.errors import RequestRefused as RequestRefused
from mainspring.guests.errors import StreamClosed as StreamClosed
from mainspring.guests.protocol.operations import READY as READY
from mainspring.guests.protocol.operations import TIMER as TIMER
from mainspring.guests.protocol.operations import Event as Event
from mainspring.guests.protocol.operations import Op as Op
from mainspring.guests.protocol.operations import Poll as Poll
from mainspring.guests.protocol.operations import Readiness as Readiness
from mainspring.lazy_imports import lazy_imports, offer

if TYPE_CHECKING:
    from mainspring.guests.client import GuestClient as GuestClient
    from mainspring.guests.client import connect as connect
    from mainspring.guests.client import open_loop as open_loop
    from mainspring.guests.guest import Guest as Guest
    from mainspring.guests.voyd import load_wasm as load_wasm
    from mainspring.guests.wasm import GuestFailed as GuestFailed
    from mainspring.guests.wasm import GuestLimit as GuestLimit
    from mainspring.guests.wasm import Limits as Limits
    from mainspring.guests.wasm import run_module as run_module

_HOMES: Final = {
    "mainspring.guests.client": "GuestClient connect open_loop",
    "mainspring.guests.guest": "Guest",
    "mainspring.guests.voyd": "load_wasm",
    "mainspring.guests.wasm": "GuestFailed GuestLimit Limits run_module",
}

offer(globals())
__getattr__ = lazy_imports(globals(), _HOMES)
