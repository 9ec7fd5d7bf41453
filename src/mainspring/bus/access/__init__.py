"""Who may publish and subscribe, and how callers prove who they are.

access      the decision: scopes of tokens, access lists of topics, the program's checker; headers only the node writes
tokens      who a secret or a certificate stands for and what it may do, as lines in settings or in a file
patterns    `*` and `**` in names of topics, agents and groups
"""

from mainspring.bus.access.access import Access as Access
from mainspring.bus.access.access import Action as Action
from mainspring.bus.access.access import Caller as Caller
from mainspring.bus.access.access import Checker as Checker
from mainspring.bus.access.access import Who as Who
from mainspring.bus.access.access import origin_of as origin_of
from mainspring.bus.access.patterns import Pattern as Pattern
from mainspring.bus.access.patterns import is_pattern as is_pattern
from mainspring.bus.access.tokens import SECRET_BYTES as SECRET_BYTES
from mainspring.bus.access.tokens import Token as Token
from mainspring.bus.access.tokens import TokenBook as TokenBook
from mainspring.bus.access.tokens import TokenSource as TokenSource
from mainspring.bus.access.tokens import certificate_names as certificate_names
from mainspring.bus.access.tokens import certificate_token as certificate_token
from mainspring.bus.access.tokens import lifetime_ms as lifetime_ms
from mainspring.bus.access.tokens import moment_text as moment_text
from mainspring.bus.access.tokens import new_token as new_token
from mainspring.bus.access.tokens import read_tokens as read_tokens
from mainspring.lazy_imports import offer

offer(globals())
