"""The networks that are up on this machine, found by the sockets of their APIs, and a client for each."""

from __future__ import annotations

from pathlib import Path

from testbed.api.client import ApiClient
from testbed.emulation import label

#: The API's socket in a network's state folder: of a network that stays up, and of the network of a run.
SOCKET, RUN_SOCKET = "network.sock", "run.sock"


def networks_up() -> list[str]:
    """Return the networks that stay up until `testbed network down`."""
    return _with(SOCKET)


def networks_of_runs() -> list[str]:
    """Return the networks of runs that are under way."""
    return _with(RUN_SOCKET)


def client(network: str) -> ApiClient:
    """Return a client of a network's API. If no process serves it, each request fails."""
    path = _socket(network, RUN_SOCKET)
    remedy = f"`testbed network clean --name {network}` takes it away"
    return ApiClient(path if path.exists() else _socket(network, SOCKET), f"the network {network}", remedy)


def _with(socket: str) -> list[str]:
    return [name for name in label.networks() if label.owner(name) and _socket(name, socket).exists()]


def _socket(network: str, socket: str) -> Path:
    return label.state_folder(network) / socket
