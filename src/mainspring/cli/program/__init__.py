"""Commands about what a program brings.

- `kernel`: `send`, `describe`, `trace`, `run`: messages to a node; `mcp`: the same as tools for language models
- `runs`, `beats`, `guest`: durable runs, lines of beats, WebAssembly guests
"""
