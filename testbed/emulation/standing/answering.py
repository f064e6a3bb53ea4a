"""A network that is up, and answers what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from testbed.api.server import ApiServer
from testbed.emulation.links.history import History
from testbed.emulation.standing.standing import SOCKET
from testbed.emulation.standing.subject import NetworkSubject
from testbed.emulation.testbed import Backend, Step, Testbed, Workers
from testbed.spec.topology import Topology


@contextmanager
def answering(
    topology: Topology | Path, *, name: str, backend: Backend, workers: Workers, step: Step, port: int | None = None
) -> Iterator[tuple[Testbed, ApiServer]]:
    """A testbed that is up while inside, and the API over it, also on a `port` of this machine if one is given. Raises
    what a testbed does where it does not come up, and PortTaken."""
    history = History()
    testbed = Testbed(topology, name=name, backend=backend, workers=workers, observer=history.note, step=step)
    # One thread for all verbs, and no other: the kernel ends a switch's daemons together with the thread that started
    # them, so the sites that a swap adds live as long as this does.
    with testbed, ThreadPoolExecutor(1, "requests") as executor:
        subject = NetworkSubject(testbed, history, executor)
        with ApiServer(subject, testbed.folder / SOCKET, port) as server:
            history.tell = subject.tell = server.announce
            yield testbed, server
