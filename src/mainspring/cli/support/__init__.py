"""What commands share.

- `options`: options that go together; `settings`: where they come from; `node_options`: where the node is, who asks
- `log_options`: the log of a server, for a command that is not a node; `messages`: messages to the kernel of a node
- `moments`: times as people type them; `output`: tables, lines, JSON, and how a command ends; `stopping`: signals
"""
