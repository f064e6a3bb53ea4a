"""Starting threads, of which a container may have only so many."""

from __future__ import annotations

import threading

from testbed.sync.errors import SyncError


def start(thread: threading.Thread) -> None:
    """Start a thread. SyncError where the container or the host has no room for another."""
    try:
        thread.start()
    except RuntimeError as error:
        raise SyncError(
            f"the thread `{thread.name}` could not be started: there are as many processes and threads here as there "
            "may be; allow more of them, or end others"
        ) from error
