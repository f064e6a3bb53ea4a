"""What runs on a host: a task that makes one run, and an agent that says what the host is.

Both start the same programs as on one machine and watch them; no packet of an emulated network, no row of a trace and
no sample comes by here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.emulation.host.budget import host_budget
from testbed.emulation.shaping import available_backends
from testbed.scaleout.bundle import Bundle, pack_run
from testbed.scaleout.node import LABEL, MEASURE_PORT, RUN_LABEL, SCRATCH, end_runs, read

#: Pings of a pair, 50 ms apart.
PINGS = 20
CAPACITY_S = 2

#: MTUs that are tried, the largest first: jumbo frames; what VXLAN needs for 1,500 inside; Ethernet's.
MTUS = (9000, 1550, 1500)
#: Of IP and ICMP.
PING_HEADERS = 28


@dataclass(frozen=True)
class MadeRun:
    """What a run came to on a host: how `testbed run` ended and what it said; its directory, where it left one."""

    host: str
    code: int
    said: str
    name: str | None = None
    archive: bytes = b""


def make_run(bundle: Bundle, overrides: Mapping[str, str], strict: bool) -> MadeRun:
    """Make a run on this host, as `testbed run` does.

    The run is a process of its own, which takes away all it made when this one is ended, whatever ends it.
    """
    host = read().name or ""
    end_runs()  # of a task that was killed with its host's connection, one may still take its network away
    try:
        file = bundle.unpack(SCRATCH / "files")
        words = [word for field, value in overrides.items() for word in ("--set", f"{field}={value}")]
        words += ["--strict"] if strict else []
        process = _started([sys.executable, "-m", "testbed", "run", str(file), "--json", *words], SCRATCH)
        try:
            output, said = process.communicate()
        except BaseException:  # the caller gave the run up
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        directories = [each for each in (SCRATCH / "runs").glob("*") if each.is_dir() and not each.is_symlink()]
        made = next((each for each in directories if not each.name.startswith(".")), None)
        told = (said + output).strip()
        if made is None:
            return MadeRun(host, process.returncode, told)
        return MadeRun(host, process.returncode, told, made.name, pack_run(made))
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """A program with the usual niceness, for which Ray is not there, and which gets SIGTERM when this process ends."""
    usual = ["nice", "-n", str(-os.getpriority(os.PRIO_PROCESS, 0)), "setpriv", "--pdeathsig=TERM"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name != LABEL}
    return subprocess.Popen(
        [*usual, *command],
        cwd=folder,
        env={**environment, RUN_LABEL: read().cluster},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class HostAgent:
    """Of a host, one process: what it says and measures."""

    def facts(self) -> dict[str, Any]:
        """Its cores, kernel, shaping backend (None where none works), and its budget where one is known."""
        backend = next((name for name, wrong in available_backends().items() if wrong is None), None)
        budget = host_budget(backend) if backend else None
        return {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "backend": backend,
            "budget_bps": budget.bits_per_second if budget else None,
        }

    def clock_s(self) -> float:
        """Its time of day."""
        return time.time()

    def listen(self) -> None:
        """Be the other end of one measurement of capacity. It ends by itself when nobody comes."""
        end = str(int(CAPACITY_S) + 15)
        command = ["timeout", end, "iperf3", "--server", "--one-off", "--bind", read().address]
        command += ["--port", str(MEASURE_PORT), "--forceflush"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # it has bound its port when it says the first line

    def measure(self, address: str) -> dict[str, float | None]:
        """The path to another host, which listens: least round trip and jitter in seconds, the largest of MTUS that
        passes whole, and what TCP carried for CAPACITY_S."""
        least, jitter = round_trip(_output(["ping", "-n", "-q", "-c", str(PINGS + 1), "-i", "0.05", address]))
        whole = (mtu for mtu in MTUS if _passes(address, mtu))
        command = ["iperf3", "--client", address, "--port", str(MEASURE_PORT), "--time", str(CAPACITY_S), "--json"]
        found = json.loads(_output(command) or "{}")
        received = found.get("end", {}).get("sum_received", {}).get("bits_per_second")
        return {"round_trip_s": least, "jitter_s": jitter, "mtu": next(whole, None), "capacity_bps": received}


def round_trip(said: str) -> tuple[float | None, float | None]:
    """The least and the mean deviation, in seconds, of what `ping -q` prints; None where nothing came back."""
    found = re.search(r"= ([\d.]+)/[\d.]+/[\d.]+/([\d.]+) ", said)  # `ms` is another word in other languages
    return (float(found[1]) / 1e3, float(found[2]) / 1e3) if found else (None, None)


def _passes(address: str, mtu: int) -> bool:
    whole = ["-M", "do", "-s", str(mtu - PING_HEADERS)]
    command = ["ping", "-nq", "-c", "2", "-i", "0.2", "-W", "2", *whole, address]
    return subprocess.run(command, capture_output=True).returncode == 0


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
