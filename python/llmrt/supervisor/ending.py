"""The end of an entry worker that is embedded in this process, as something to poll for."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmrt._core import Entry


class EntryEnd:
    """``fileno()`` is readable once the worker has ended, however it did: on demand, or by a panic in its thread."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._reader, teller = socket.socketpair()
        threading.Thread(target=_tell, args=(entry, teller), name="llmrt-entry-end", daemon=True).start()

    def fileno(self) -> int:
        """Descriptor to poll for reading."""
        return self._reader.fileno()

    def has_come(self) -> bool:
        """Whether the worker has ended."""
        return self._entry.wait(0.0)

    def close(self) -> None:
        """Ends the polling; the thread ends with the worker."""
        self._reader.close()


def _tell(entry: Entry, teller: socket.socket) -> None:
    with teller:
        entry.wait()
