"""Commands about what a program brings.

- `kernel`: `send`, `describe`, `trace`, `run`: messages to a node; `mcp`: the same as tools for language models
- `outgoing`: what transactions on PostgreSQL published in vain
- `codec`: `decode`: what a program has encoded, for people who have its keys
- `runs`, `beats`, `guest`: durable runs, lines of beats, WebAssembly guests
"""
