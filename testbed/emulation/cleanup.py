"""Clean-up after testbeds: finds only containers and processes with our label, and ends processes by their ids."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TypeVar

import docker

from testbed.emulation import label
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import remove_containers
from testbed.emulation.containers.image import prober
from testbed.emulation.process import ProcessIdentity

T = TypeVar("T")

#: The seconds that a testbed's process gets to remove its network by itself before it is killed.
OWNER_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The networks, containers and processes that a clean-up removed."""

    networks: tuple[str, ...]
    containers: tuple[str, ...]
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetworkRemains:
    """The containers and processes of one network on this machine.

    Attributes:
        owner: The process that runs the network or probes an image, or None after a crash.
    """

    network: str
    owner: ProcessIdentity | None
    containers: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()


def clean(client: docker.DockerClient | None, network: str | None = None) -> CleanupResult:
    """Remove one network, or all networks of ours.

    Without an engine (`client` is None) there are no containers to remove. A testbed that still runs is asked to end
    first, so that it can write its records.

    Raises:
        EngineError: The engine failed. Everything but the containers was removed.
    """
    names = [name for name in label.networks() if network in (None, name)]
    for name in names:
        _end_owner(name)
    found, failure = _found(client)
    left = [each for each in found if network in (None, each.network) and not _has_successor(each.network)]
    _, containers, processes = _take_all(client, left, failure)
    return CleanupResult(tuple(names), containers, processes)


def _has_successor(network: str) -> bool:
    """Return whether another process has taken a network's name since the network's owner was ended."""
    return label.owner(network) not in (None, ProcessIdentity.own())


def clean_crashed(client: docker.DockerClient | None) -> CleanupResult:
    """Remove what is left of networks whose owner has ended, and of crashed launches on networks whose owner runs.

    Raises:
        EngineError: The engine failed. Everything but the containers was removed.
    """
    found, failure = _found(client)
    processes = [pid for each in found if each.owner for pid in label.end_crashed_launches(each.network)]
    networks, containers, killed = _take_all(client, [each for each in found if each.owner is None], failure)
    return CleanupResult(networks, containers, (*processes, *killed))


def _found(client: docker.DockerClient | None) -> tuple[list[NetworkRemains], Exception | None]:
    """Return the remains of all networks, and the engine's error if it failed: containers are then not among them."""
    try:
        return find(client), None
    except engine.ENGINE_ERRORS as error:
        return find(None), error


def _take_all(
    client: docker.DockerClient | None, remains: Iterable[NetworkRemains], failure: Exception | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    """Remove what is left of networks. Returns the names of the networks and the containers, and the processes' ids.

    Raises:
        EngineError: The engine failed, now or before (`failure`). Everything but the containers was removed.
    """
    networks, containers, processes = list[str](), list[str](), list[int]()
    for each in remains:
        try:
            removed = _take(client, each.network)
        except FileExistsError:  # another process has taken this name, and removed what was left
            continue
        except engine.ENGINE_ERRORS as error:
            removed, failure = [], error
        networks.append(each.network)
        containers += removed
        processes += each.processes
    if failure is not None:
        raise engine.EngineError(f"some containers may not have been removed: {failure}") from failure
    return tuple(networks), tuple(containers), tuple(processes)


def _take(client: docker.DockerClient | None, network: str) -> list[str]:
    """Remove what a network without another owner left, and return the names of its containers.

    Raises:
        FileExistsError: Another process has taken the name meanwhile.
    """
    # Processes choose their label, and it may name any folder.
    claims = label.is_name(network) and label.owner(network) != ProcessIdentity.own()
    with ExitStack() as claimed:
        if claims:
            try:
                claimed.enter_context(label.labelled(network))  # ends its processes, keeps others from taking the name
            except FileExistsError:
                raise
            except OSError:  # on a full disk neither this process nor another one can take the name
                claims = False
        if not claims:
            claimed.callback(label.remove_state, network)
            label.kill_processes(network)
        return remove_containers(client, network) if client is not None else []


def find(client: docker.DockerClient | None) -> list[NetworkRemains]:
    """Return what each network has on this machine, sorted by name."""
    containers, processes = defaultdict[str, list[str]](list), defaultdict[str, list[int]](list)
    if client is not None:
        for container in client.containers.list(all=True, filters={"label": label.LABEL}, ignore_removed=True):
            containers[container.labels[label.LABEL]].append(str(container.name))
    for pid, network in label.processes():
        processes[network].append(pid)
    names = sorted({*label.networks(), *containers, *processes})
    owners = {name: label.owner(name) or prober(name) for name in names}
    return [
        NetworkRemains(name, owner, tuple(sorted(containers[name])), tuple(sorted(processes[name])))
        for name, owner in owners.items()
    ]


def with_engine(action: Callable[[docker.DockerClient | None], T]) -> T:
    """Call `action` with a client of the Docker engine, or with None if there is no engine, and return its result.

    Raises:
        EngineError: An engine is expected but does not answer. `action` was called with None first.
    """
    try:
        client = engine.connect()
    except engine.EngineError as error:
        done = action(None)
        if engine.is_expected():
            raise engine.EngineError(f"containers were not searched: {error}") from error
        return done
    return action(client)


def sweep(client: docker.DockerClient | None, network: str) -> None:
    """Remove what this process's own network may have left at its end; leave a network of another process alone."""
    with suppress(FileExistsError):
        _take(client, network)  # where it is still this process's own, an interrupt cut the network's clean-up short


def _end_owner(network: str) -> None:
    """Have a network's owner end, and kill it if it does not in time. A later owner of the name is left alone."""
    owner = label.owner(network)
    if owner is None or owner.pid == os.getpid():
        return
    owner.send(signal.SIGTERM)
    deadline = time.monotonic() + OWNER_DEADLINE_S
    while label.owner(network) == owner:
        if time.monotonic() > deadline:
            owner.send(signal.SIGKILL)
        time.sleep(0.05)
