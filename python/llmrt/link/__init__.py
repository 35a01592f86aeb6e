"""ZMQ links of the Python processes; twin of ``rust/llmrt-link``.

Every receiver binds an :class:`Inbox`, senders connect an :class:`Outbox`. Nothing here blocks and nothing runs in
the background but libzmq's own I/O thread: a loop registers its links with one ``zmq.Poller``, sleeps in
:func:`poll` and drains each link with ``receive()``, which also greets, answers heartbeats and notices dead peers.

Bounds: ``Submit`` costs one credit per request, granted by the receiver; messages share a window of bytes that the
echo of a heartbeat acknowledges, which ``Abort`` and ``Ended`` pass even when it is full. A link is one ordered stream,
so an abort arrives behind its own request.
"""

from llmrt.link.common import (
    Down,
    Full,
    Identity,
    InboxEvent,
    Joined,
    Left,
    LinkOptions,
    NotReady,
    OutboxEvent,
    Received,
    Up,
    Welcome,
    incarnation,
    poll,
)
from llmrt.link.inbox import Inbox
from llmrt.link.outbox import Outbox

__all__ = [
    "Down",
    "Full",
    "Identity",
    "Inbox",
    "InboxEvent",
    "Joined",
    "Left",
    "LinkOptions",
    "NotReady",
    "Outbox",
    "OutboxEvent",
    "Received",
    "Up",
    "Welcome",
    "incarnation",
    "poll",
]
