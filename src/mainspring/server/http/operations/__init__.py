"""What a client can do over HTTP, one module for each noun; each has its `OPERATIONS`, which `routes` puts together.

`topics` · `events` (publish, read, follow) · `groups` · `dead_letters` · `schedules` · `tasks` · `schemas` ·
`messages` · `node`
"""
