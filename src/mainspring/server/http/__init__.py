"""The HTTP face of a node: every operation in one table, and the pages that live on the same port.

- `routes`: puts the table on an application. `table`: what an operation is. `operations/`: what a client can do, each
  next to its description, in the module named after what it is about.
- `call`: what every operation is given: a request, read strictly, and who sends it. `problem`: every error.
- `connection`: one connection, also of a sender that half-closes or speaks no HTTP.
- `access`: who may come in, who is asking, and what they are shown; for WebSockets too.
- `documents/`: OpenAPI, AsyncAPI, CloudEvents. `pages`: the dashboard, the JavaScript client, the program's pages.
"""

from mainspring.server.http.access import (
    Identify,
    TokenAuthenticator,
    claimed_agent,
    outside_middleware,
    trusting_own_user,
    while_valid,
)
from mainspring.server.http.call import Face
from mainspring.server.http.connection import HttpRunner
from mainspring.server.http.pages import Dashboard, add_client_js, add_pages
from mainspring.server.http.routes import OPERATIONS, add_routes, openapi_document, openapi_text

__all__ = [
    "OPERATIONS",
    "Dashboard",
    "Face",
    "HttpRunner",
    "Identify",
    "TokenAuthenticator",
    "add_client_js",
    "add_pages",
    "add_routes",
    "claimed_agent",
    "openapi_document",
    "openapi_text",
    "outside_middleware",
    "trusting_own_user",
    "while_valid",
]
