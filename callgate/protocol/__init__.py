"""Wire protocols: bytes in, messages or a `ProtocolError` out.

Pure. `framing` cuts a stream into frames; `jsonrpc`, `mcp` and `runtime` read and write one
frame. Nothing here opens, waits or counts: a front door or a peer is these and its IO.
"""
