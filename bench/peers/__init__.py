"""What Mainspring is compared with, started for one measurement and ended after it.

- `servers`: a node of ours, nats-server and redis-server
- `task_workers`: the same task in the queues of Mainspring, Celery and taskiq
"""
