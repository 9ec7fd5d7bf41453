"""A node: one process with its parts on one loop and one log, and the sockets through which others reach it.

`Core` (core.py) is a node without sockets, which is what simulations use; `Node` (node.py) adds them. `Running`
(running.py) is a program inside somebody else's process: its node, or a client of it. They are imported when they are
first used: a simulation does not pay for a web server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.node.core import BootFailure as BootFailure
    from mainspring.node.core import Core as Core
    from mainspring.node.in_process import InProcess as InProcess
    from mainspring.node.node import Node as Node
    from mainspring.node.node import load_program as load_program
    from mainspring.node.node import web_runner as web_runner
    from mainspring.node.running import Running as Running
    from mainspring.node.stored_records import all_readers as all_readers
    from mainspring.node.stored_records import check_event as check_event

_HOMES: Final = {
    "mainspring.node.core": "BootFailure Core",
    "mainspring.node.in_process": "InProcess",
    "mainspring.node.node": "Node load_program web_runner",
    "mainspring.node.running": "Running",
    "mainspring.node.stored_records": "all_readers check_event",
}
__getattr__ = lazy_imports(globals(), _HOMES)
