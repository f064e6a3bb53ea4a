"""Taking away what a testbed left: only what carries our label, found by it, and ended by id."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import docker

from testbed.emulation import label
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import remove_containers
from testbed.emulation.process import ProcessIdentity

#: A testbed that is told to end takes its network away itself; how long it may take for that.
OWNER_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was found and taken away."""

    networks: tuple[str, ...]
    containers: tuple[str, ...]
    processes: tuple[int, ...]


def clean(client: docker.DockerClient | None, network: str | None = None) -> Cleaned:
    """Take away one network, or all of ours. Without an engine there can be no containers.

    A testbed that still runs is asked to end first, so that it can write down what it had. Raises EngineError when the
    engine fails; then all but containers is taken away.
    """
    names = [name for name in label.networks() if network in (None, name)]
    for name in names:
        _end_owner(name)
    processes = label.kill_processes(network)
    try:
        containers = remove_containers(client, network) if client is not None else []
    except engine.ENGINE_ERRORS as error:
        raise engine.EngineError(f"containers may be left: {error}") from error
    finally:
        label.remove_state(network)
    return Cleaned(tuple(names), tuple(containers), tuple(processes))


def clean_with_engine(network: str | None = None) -> Cleaned:
    """Take away one network, or all of ours, with the containers that the engine has.

    Raises EngineError when it can't be asked; then all else is taken away. No engine at all has no containers.
    """
    try:
        client = engine.connect()
    except engine.EngineError as error:
        done = clean(None, network)
        if engine.is_expected():
            raise engine.EngineError(f"containers were not looked for: {error}") from error
        return done
    return clean(client, network)


def sweep(client: docker.DockerClient | None, network: str) -> None:
    """Take away what the end of one's own network may have missed, and nothing of another process's of that name."""
    if label.owner(network) == ProcessIdentity.of(os.getpid()):  # its end was cut short before it gave the name back
        clean(client, network)
        return
    with suppress(FileExistsError), label.labelled(network):  # which ends its processes
        if client is not None:
            remove_containers(client, network)


def _end_owner(network: str) -> None:
    deadline = time.monotonic() + OWNER_DEADLINE_S
    asked = None
    while (owner := label.owner(network)) is not None and owner.pid != os.getpid():
        if asked != owner:
            owner.send(signal.SIGTERM)
            asked = owner
        if time.monotonic() > deadline:
            owner.send(signal.SIGKILL)
        time.sleep(0.05)
