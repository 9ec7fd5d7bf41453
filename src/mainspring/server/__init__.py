"""The adapters: WebSocket, HTTP, NDJSON and ZCL1. Bytes in, calls out; no rules of their own."""
