"""A testbed run as a user starts it: a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from testbed.emulation.label import LABEL, networks, processes
from testbed.telemetry.store import read_records
from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]

#: In each line that says how far training is, and in no other.
TRAINS = "  round "
PROGRAM = (sys.executable, "-m", "testbed")
#: The same with workers that are forked processes in the network's hosts: a container takes 3 s of a processor to
#: start. For what a test asks of the members' protocol, where nothing in it is about containers.
FORKED = (sys.executable, "-m", "tests.run.forked")


class Running:
    """`testbed run …`, or another verb, with its output collected as it comes. Killed on leaving, if it goes on."""

    def __init__(
        self, folder: Path, experiment: str, *arguments: str, program: Sequence[str] = PROGRAM, verb: str = "run"
    ) -> None:
        """`folder` becomes the working directory, so that `runs/` is made there."""
        self.folder = folder
        command = [*program, verb, str(REPOSITORY / experiment), *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, text: str) -> None:
        """Until a line holds the text. AssertionError, with the output, when it ends or takes too long first."""
        with self._more:
            there = self._more.wait_for(
                lambda: any(text in line for line in self.lines) or not self._reader.is_alive(), PATIENCE_S
            )
            assert there and any(text in line for line in self.lines), self.output

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return (self.folder / "runs" / "latest").resolve()

    @property
    def summary(self) -> dict[str, Any]:
        """The summary that the run has written."""
        return dict(json.loads((self.directory / "summary.json").read_text()))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def happened(self, kind: str, target: str) -> bool:
        """Whether that is among what the run tells of itself."""
        events = read_records(self.directory / "events.jsonl")
        return any((event["kind"], event["target"]) == (kind, target) for event in events)

    @property
    def containers(self) -> list[Container]:
        """Those of its workers that run."""
        return list(
            docker.from_env().containers.list(filters={"label": f"{LABEL}={self.directory.name}"}, ignore_removed=True)
        )

    @property
    def left_behind(self) -> Mapping[str, Sequence[object]]:
        """What of this run is still on the machine: empty lists when nothing is. Others' networks are theirs."""
        name = self.directory.name
        client = docker.from_env()
        return {
            "processes": list(processes(name)),
            "containers": client.containers.list(all=True, filters={"label": f"{LABEL}={name}"}, ignore_removed=True),
            "networks": [network for network in networks() if network == name],
        }


NOTHING: dict[str, list[object]] = {"processes": [], "containers": [], "networks": []}


#: What Docker makes begins with these, and what tests make in the name of somebody else; other tests may run beside.
OTHERS = ("br-", "veth", "foreign")


def interfaces() -> set[str]:
    """The interfaces of the machine's own namespace that may be the testbed's."""
    return {path.name for path in Path("/sys/class/net").iterdir() if not path.name.startswith(OTHERS)}
