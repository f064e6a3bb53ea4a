"""Starting the process that keeps a network up, and following what it says until the network is up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from testbed.api.entry import PAGE, Door, show_in_browser
from testbed.emulation import label
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.process import how_it_ended
from testbed.emulation.testbed import Backend, Step
from testbed.errors import FAILED, MOST_QUOTED, written_aside


class StartupError(RuntimeError):
    """The network is not up, and nothing of it is left; `exit_code` says whose fault it was."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def bring_up(
    name: str, topology: Path, backend: Backend, containers: ProgramContainers, step: Step, door: Door | None = None
) -> str:
    """Bring a network up in the background, with such containers, and its API on a port of this machine where there is
    a `door`; returns when all of it is, with what to say of the page. StartupError when it does not come up.

    Interrupted meanwhile, it has everything taken away first.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        owner = subprocess.Popen(
            [
                *(sys.executable, "-m", "testbed.emulation.daemon.owner"),
                *("--name", name, "--backend", backend, "--containers", containers.to_json(), str(topology)),
                *(() if door is None else ("--port", str(door.port))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Not ours: what it starts keeps that open, and whoever waits for the end of our output would wait for it.
            stderr=complaints,
            # Started from within another network's host, it must not end together with that network.
            env={name: value for name, value in os.environ.items() if name != label.ENVIRONMENT},
            text=True,
            start_new_session=True,  # it outlives this terminal, and Ctrl-C in it
        )
        assert owner.stdout is not None
        try:
            with owner.stdout as words:
                _follow(words, step)
        except EOFError:
            complaints.seek(0)
            raise StartupError(_broken_off(how_it_ended(owner.wait()), complaints.read()), FAILED) from None
        except BaseException:
            owner.terminate()
            owner.wait()
            raise
    return show_in_browser(label.state_folder(name) / PAGE, door) if door else ""


def _broken_off(ended: str, complained: str) -> str:
    text = f"the process that builds the network {ended} before the network was up"
    if not complained.strip():
        return text
    last = complained.strip().splitlines()[-1][:MOST_QUOTED]
    with suppress(OSError):  # the disk may be full
        return f"{text}: {last}; its whole output is in {written_aside(complained)}"
    return f"{text}: {last}"


def _follow(words: IO[str], step: Step) -> None:
    while "up" not in (word := _next(words)):
        with step(word["step"]):
            _next(words)  # that it is done


def _next(words: IO[str]) -> dict[str, Any]:
    line = words.readline()
    if not line:
        raise EOFError
    word: dict[str, Any] = json.loads(line)
    if "failed" in word:
        raise StartupError(word["failed"], word["code"])
    return word
