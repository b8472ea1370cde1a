"""`callgate demo`: a rogue agent behind the gate, and a client that shows what becomes of it.

`agent` is the rogue, `client` speaks MCP to the gate, `scenes` says what to try and what must
come of it, `show` draws it.
"""
