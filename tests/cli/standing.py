"""Networks that tests bring up through the command line, and what one measures in them from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import yaml

from testbed.emulation.label import LABEL, networks, processes
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

#: Round trip that the access links of two workers add: the LAN's delay up and down, there and back.
LAN_S = 4 * 0.1e-3


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "testbed", *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def testbed(*words: str | Path, code: int = 0, **options: Any) -> str:
    """Run a verb, which must end with this code; its standard output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command(*words), capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE_S, **options
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


testbed.__test__ = False  # type: ignore[attr-defined]


class Standing:
    """A network that is up, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def verb(self, verb: str, *words: str | Path, **options: Any) -> str:
        return testbed(*verb.split(), "--name", self.name, *words, **options)

    def status(self) -> dict[str, Any]:
        (network,) = json.loads(self.verb("network list", "--json"))["networks"]
        return dict(network)

    def address(self, host: str) -> str:
        return str(self.status()["hosts"][host]["address"])

    def start(self, host: str, *words: str) -> subprocess.Popen[str]:
        """A program in a host, with pipes."""
        return subprocess.Popen(
            command("network", "exec", "--name", self.name, host, "--", *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def round_trip_s(self, source: str, address: str) -> float:
        """Return the least of eight round trips, in seconds."""
        return min(self.round_trips_s(source, address, 8))

    def round_trips_s(self, source: str, address: str, count: int) -> list[float]:
        """Return the round trips of `count` pings, in seconds."""
        said = self.verb(
            "network exec", source, "--", "ping", "-n", "-c", str(count), "-i", "0.02", "-w", "20", address
        )
        found = [float(each) / 1e3 for each in re.findall(r"time=([\d.]+) ms", said)]
        assert len(found) >= count, said  # with a deadline, `ping` may send one more
        return found


def write(folder: Path, name: str, sites: dict[str, Any], *links: Sequence[Any]) -> Path:
    """A topology file; a site is its number of workers or all of it, a link (a, b, rate, delay)."""
    value = {
        "name": name,
        "sites": {site: {"workers": it} if isinstance(it, int) else it for site, it in sites.items()},
        "links": [{"between": [a, b], "rate": rate, "delay": delay} for a, b, rate, delay in links],
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


@contextmanager
def up(file: Path, name: str, *words: str) -> Iterator[Standing]:
    testbed("network", "up", file, "--name", name, *words)
    try:
        yield Standing(name)
    finally:
        testbed("network", "clean", "--name", name)


def left_of(name: str) -> list[object]:
    """What of a network is on this machine."""
    client = docker.from_env()
    containers = client.containers.list(all=True, filters={"label": f"{LABEL}={name}"}, ignore_removed=True)
    return [*processes(name), *containers, *(each for each in networks() if each == name)]
