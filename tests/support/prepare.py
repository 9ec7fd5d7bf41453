"""What the tests need that must be built or fetched, done before they begin: `python -m tests.support.prepare`.

`make test` calls it. A second call does nothing. What a machine lacks is said in a line, and the tests that need it
skip; where CI is set they fail.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from tests.support import generators, javascript, mongo_server


def prepare() -> None:
    _step(mongo_server.missing, mongo_server.build, "building FerretDB, the MongoDB of the tests (once, some minutes)")
    _step(generators.missing, generators.fetch, "fetching openapi-python-client (once, seconds)")
    _step(javascript.missing, javascript.fetch, "fetching the npm packages of the JavaScript tests (once, seconds)")


def _step(missing: Callable[[], str | None], make: Callable[[], None], text: str) -> None:
    """Make what is missing. `missing` is None where nothing is, a reason where it cannot be made, or empty text."""
    reason = missing()
    if reason is None:
        return
    if reason:
        print(f"prepare: {reason}; the tests that need it will skip", flush=True)
        return
    print(f"prepare: {text} ...", flush=True)
    began = time.monotonic()
    try:
        make()
    except subprocess.CalledProcessError as error:
        print(f"prepare: that failed: {(error.stderr or b'').decode(errors='replace')[-600:]}", file=sys.stderr)
        return
    print(f"prepare: done in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    prepare()
