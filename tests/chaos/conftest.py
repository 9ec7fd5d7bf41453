"""What `make test` leaves to `make chaos`.

A round with PostgreSQL takes half a minute; `tests/servers/postgres/test_failover.py` has a failover in a second.
"""

from __future__ import annotations

import os

collect_ignore = [] if "CHAOS_SECONDS" in os.environ else ["test_chaos_postgres.py"]
