"""The web processes are the node themselves: `gunicorn -c gunicorn_embedded.py --workers 3 shop.wsgi`."""

from typing import Any

from mainspring.contrib.django import embed


def post_worker_init(worker: Any) -> None:
    worker.node = embed()


def worker_exit(server: Any, worker: Any) -> None:
    worker.node.stop()
