"""The HTTP face of a node: every operation on one table, and the pages that live on the same port.

`routes` puts the table on an application. Each thing a client can do stands next to its description, in the module
named after what it is about (`topics`, `publish`, `groups`...); what they share is in `face`, `table`, `problem`,
`query`, `body` and `strict_json`; who may come in is decided in `access` and `tokens`, for WebSockets too,
and what they are shown in `sight`.
"""

from mainspring.server.http.routes import OPERATIONS, add_routes, openapi_document, openapi_text

__all__ = ["OPERATIONS", "add_routes", "openapi_document", "openapi_text"]
