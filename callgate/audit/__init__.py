"""The audit: what happened, written before anybody is answered, in a chain that shows tampering.

Pure: `events` (what may be written), `chain` (how lines hang together), `names`, `merge`.
IO: `log` (what the router uses) over `writer`, `head`, `files`, `recovery`, `retention`; `sinks`
(copies for others); `index` (what is in a segment); `verify`.
"""

from callgate.audit.events import Event
from callgate.audit.log import AuditLog, Checkpoint
from callgate.audit.sinks import Sink

__all__ = ["AuditLog", "Checkpoint", "Event", "Sink"]
