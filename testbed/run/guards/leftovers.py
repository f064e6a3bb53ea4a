"""What the end of a run may have missed of what it made: found by its label, and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.undo import UndoStack
from testbed.run.errors import RunFailed


@contextmanager
def taken_away(network: str) -> Iterator[None]:
    """At the end whatever there still is of a network is taken away: interrupted at the wrong moment, the way back may
    have missed something.

    EngineError where there is no engine: then nothing is begun that it would have to take away. RunFailed when it is
    gone at the end.
    """
    engine.connect()
    with UndoStack() as stack:
        stack.callback(_take_away, network)
        yield


def _take_away(network: str) -> None:
    try:
        client = engine.connect()
    except engine.EngineError as error:
        cleanup.sweep(None, network)
        raise RunFailed(f"{error} `testbed clean --name {network}` then takes the containers away.") from error
    cleanup.sweep(client, network)
