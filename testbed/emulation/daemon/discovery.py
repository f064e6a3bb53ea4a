"""The networks that are up on this machine and can be asked, and those of runs: each by its API's socket."""

from __future__ import annotations

from pathlib import Path

from testbed.api.client import ApiClient
from testbed.emulation import label

#: In the state folder of a network that stays up until it is taken down, and of one that is up while a run is.
SOCKET, RUN_SOCKET = "network.sock", "run.sock"


def networks_up() -> list[str]:
    """The networks that are up until they are taken down."""
    return _with(SOCKET)


def networks_of_runs() -> list[str]:
    """The networks of runs that are under way."""
    return _with(RUN_SOCKET)


def client(network: str) -> ApiClient:
    """Who asks a network's owner; where there is none, each request fails."""
    path = _socket(network, RUN_SOCKET)
    remedy = f"`testbed clean --name {network}` takes it away"
    return ApiClient(path if path.exists() else _socket(network, SOCKET), f"the network {network}", remedy)


def _with(socket: str) -> list[str]:
    return [name for name in label.networks() if label.owner(name) and _socket(name, socket).exists()]


def _socket(network: str, socket: str) -> Path:
    return label.state_folder(network) / socket
