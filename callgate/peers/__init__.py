"""Peers: the two ends of a gate, as state machines without IO.

A caller peer takes what a client sends, an agent peer what an agent sends; they share a `hub`,
decide through the router's engine, and put frames into outboxes that leave when the audit has
been written. `docs/adr/0008` says why.
"""
