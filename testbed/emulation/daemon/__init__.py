"""The networks of this machine: bring one up in the background, find those that are up, and connect to one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from testbed.api.client import ApiClient
from testbed.api.entry import ApiPort
from testbed.emulation import label
from testbed.emulation.process import how_it_ended
from testbed.errors import FAILED, MOST_QUOTED, written_aside

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers
    from testbed.emulation.testbed import Backend, Step

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
    remedy = f"`testbed network clean --name {network}` removes it"
    return ApiClient(path if path.exists() else _socket(network, SOCKET), f"the network {network}", remedy)


def _with(socket: str) -> list[str]:
    return [name for name in label.networks() if label.owner(name) and _socket(name, socket).exists()]


def _socket(network: str, socket: str) -> Path:
    return label.state_folder(network) / socket


class StartupError(RuntimeError):
    """The network did not come up. Nothing of it is left, unless its own process was killed: then the text says so.

    The command ends with `exit_code`.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def bring_up(
    name: str,
    topology: Path,
    backend: Backend,
    containers: ProgramContainers,
    step: Step,
    api_port: ApiPort | None = None,
) -> None:
    """Bring a network up in the background.

    With an `api_port`, the API is also served on a port of this machine. An interrupted call waits until the network
    has been removed.

    Raises:
        StartupError: The network did not come up.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        owner = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "testbed.emulation.daemon.owner"),
                *("--name", name, "--backend", backend, "--containers", containers.to_json(), str(topology)),
                *(() if api_port is None else ("--port", str(api_port.port))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Not this process's stderr: the owner's children keep it open, and a pipe's reader would wait for them.
            stderr=complaints,
            # Without the labels of a network and a launch on whose host this may run: their end would kill the process.
            env={name: value for name, value in os.environ.items() if name not in (label.ENVIRONMENT, label.LAUNCH)},
            text=True,
            start_new_session=True,  # it outlives this terminal, and does not get its Ctrl-C
        )
        assert owner.stdout is not None
        try:
            with owner.stdout as lines:
                _follow(lines, step)
        except EOFError:
            complaints.seek(0)
            text = _broken_off(how_it_ended(owner.wait()), complaints.read())
            raise StartupError(f"{text}; `testbed network clean --name {name}` removes what is left", FAILED) from None
        except BaseException:
            owner.terminate()
            owner.wait()
            raise


def _broken_off(ended: str, complained: str) -> str:
    text = f"the process that builds the network {ended} before the network was up"
    if not complained.strip():
        return text
    last = complained.strip().splitlines()[-1][:MOST_QUOTED]
    with suppress(OSError):  # the disk may be full
        return f"{text}: {last}; its whole output is in {written_aside(complained)}"
    return f"{text}: {last}"


def _follow(lines: IO[str], step: Step) -> None:
    while "up" not in (message := _next_message(lines)):
        with step(message["step"]):
            _next_message(lines)  # the step is done


def _next_message(lines: IO[str]) -> dict[str, Any]:
    line = lines.readline()
    if not line:
        raise EOFError
    message: dict[str, Any] = json.loads(line)
    if "failed" in message:
        raise StartupError(message["failed"], message["code"])
    return message
