"""What this host can carry, measured once and kept: bits a second over all links, and steps of training.

The trial is a star of eight sites whose 16 directed links of 40 Mbit/s are all kept full by TCP, as a busy experiment
would. What arrives over all links together, over the share of the processors that it took, is what the host carries
when it does nothing else; what else runs on it meanwhile counts against it. (Fewer, faster links would flatter it:
TCP makes larger super-packets at higher rates. Four flows over gigabit links showed 2.5 Gbit/s on two cores.)
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.emulation.label import labelled
from testbed.emulation.network import Network
from testbed.emulation.node import Namespace
from testbed.emulation.shaping import Shaper, open_shaper
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology, Worker
from testbed.telemetry.host import CpuMeter

KEPT = Path("/var/lib/testbed/budget.json")

#: Of what the host carries when it does nothing else, this part is an experiment's: its workers compute, add and
#: copy on the same cores.
USABLE = 0.75

PAIRS = 4
LINK_RATE = "40mbit"
WARM_UP_S = 2.0
WINDOW_S = 2.0
#: The batch that a step's cost is measured with.
BATCH = 32


class BudgetError(RuntimeError):
    """The trial could not be made."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`bits_per_second` is a sum over links; `step_seconds` what a step of each model takes on one core.

    `key` names the host it was measured on: kernel, cores, backend. Another host's is not used.
    """

    key: str
    bits_per_second: float
    step_seconds: Mapping[str, float]
    cores: int


@dataclass(frozen=True, slots=True)
class Need:
    """What an experiment may ask of the host at once: every link at its highest rate, every worker computing."""

    bits_per_second: float
    cores: float

    def excess(self, budget: Budget, scale: float) -> str | None:
        """Why the experiment does not fit and what would; None when it fits."""
        usable = budget.bits_per_second * USABLE
        if self.bits_per_second > usable:
            fits = scale * usable / self.bits_per_second
            return (
                f"its links carry up to {self.bits_per_second / 1e6:.0f} Mbit/s together, this host "
                f"{usable / 1e6:.0f} Mbit/s; a scale of {_two_digits_down(fits):g} would fit (now {scale:g})"
            )
        if self.cores > budget.cores:
            return (
                f"its workers compute on {self.cores:.1f} cores, this host has {budget.cores}; declare a step time "
                f"{self.cores / budget.cores:.1f} times as long, or fewer workers"
            )
        return None


def _two_digits_down(value: float) -> float:
    """Rounded down to two significant digits, so that what is named fits."""
    text = f"{value:.1e}"
    rounded = float(text)
    return rounded if rounded <= value else float(f"{rounded - 10.0 ** (int(text.split('e')[1]) - 1):.1e}")


def need(experiment: Experiment, budget: Budget) -> Need:
    """The experiment's need, its networks to swap to included."""
    networks = (experiment.topology, *experiment.networks.values())
    train, step_time = experiment.spec.train, experiment.spec.compute.step_time
    cost = budget.step_seconds.get(train.model, 0.0) * train.batch / BATCH
    return Need(
        bits_per_second=max(_peak(topology) for topology in networks),
        cores=sum(cost * w.speed / step_time for w in experiment.topology.workers) if step_time else 0.0,
    )


def _peak(topology: Topology) -> float:
    total = 0.0
    for link in topology.links.values():
        rows = link.trace.rows if link.trace else ()
        total += max([row.rate_bps for row in rows if row.rate_bps is not None], default=link.state.rate_bps)
    return total


def host_budget(backend: str) -> Budget | None:
    """The budget kept for this host and backend; None when none was measured."""
    try:
        budget = Budget(**json.loads(KEPT.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return budget if budget.key == _key(backend) else None


def measure_budget(shaper_name: str) -> Budget:
    """Measure this host, about five seconds, and keep the result. BudgetError when the trial fails."""
    with labelled("budget"), open_shaper(shaper_name) as shaper:  # type: ignore[arg-type]
        carried = _carry(shaper)
    budget = Budget(_key(shaper_name), carried, _step_seconds(), os.cpu_count() or 1)
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(asdict(budget), indent=1) + "\n")
    return budget


def _key(backend: str) -> str:
    return f"{platform.release()} {platform.machine()}, {os.cpu_count()} cores, {backend}"


def _carry(shaper: Shaper) -> float:
    leaves = [f"leaf{i}" for i in range(2 * PAIRS)]
    value = {
        "name": "budget",
        "sites": {"hub": {"workers": 0}} | {leaf: {"workers": 1} for leaf in leaves},
        "links": [{"between": ["hub", leaf], "rate": LINK_RATE, "delay": "5ms"} for leaf in leaves],
    }
    topology = Topology.from_value(value, Path("budget"))
    network = Network("budget", topology, shaper, lambda *_: None)
    hosts = {worker.name: Namespace() for worker in topology.workers}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        network.build()
        network.join({name: host.pid for name, host in hosts.items()})
        pairs = list(zip(topology.workers[::2], topology.workers[1::2], strict=True))
        for source, target in [*pairs, *((b, a) for a, b in pairs)]:
            processes.append(_start(network, target, ["iperf3", "-s", "-1"]))
            time.sleep(0.1)  # until it listens
            seconds = str(int(WARM_UP_S + WINDOW_S + 4))
            processes.append(_start(network, source, ["iperf3", "-c", network.address(target), "-t", seconds]))
        time.sleep(WARM_UP_S)
        before, began, busy = sum(network.arrived_bytes().values()), time.monotonic(), CpuMeter()
        time.sleep(WINDOW_S)
        arrived = sum(network.arrived_bytes().values()) - before
        carried = arrived * 8 / (time.monotonic() - began) / busy.read()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        network.stop()
        for host in hosts.values():
            host.close()
    if not carried:
        raise BudgetError("nothing arrived over the trial's links; `testbed doctor` says what this machine lacks")
    return carried


def _start(network: Network, worker: Worker, command: list[str]) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = network.container(worker.name).popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return process


def _step_seconds() -> dict[str, float]:
    """Each model's step, measured in a process of its own, which imports PyTorch and goes."""
    command = [sys.executable, "-m", "testbed.worker.cost", str(BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BudgetError(f"the cost of a training step could not be measured:\n{done.stderr.strip()}")
    return dict(json.loads(done.stdout))
