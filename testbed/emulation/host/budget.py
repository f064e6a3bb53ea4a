"""The capacity of this host, measured once and kept: bits per second summed over all links, and training steps.

The trial network is a star of eight sites whose 16 directed links of 40 Mbit/s are all kept full by TCP, as in a busy
experiment. The budget is the rate that arrives over all links together, divided by the share of the processors that
the trial took: the rate that the host carries when it does nothing else. Other work during the trial lowers the budget.
(Fewer, faster links would overstate the capacity, because TCP makes larger super-packets at higher rates: four flows
over gigabit links showed 2.5 Gbit/s on two cores.)

Hosts change, and other work distorts a measurement. So a budget records when it was measured and how much other work
ran, and is measured again when it is old, or when a run has shown that it is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from docker.errors import DockerException

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image, python_output
from testbed.emulation.errors import EmulationError
from testbed.emulation.shaping import open_shaper
from testbed.spec.event import LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology, Worker
from testbed.spec.train import PARAMETERS
from testbed.telemetry.host import CpuMeter
from testbed.telemetry.store import write_json

if TYPE_CHECKING:
    from testbed.emulation.network.network import Network
    from testbed.emulation.testbed import Backend

KEPT = Path("/var/lib/testbed/budget.json")

#: The share of the budget that an experiment may use: its workers compute, add and copy on the same cores.
USABLE = 0.75

PAIRS = 4
LINK_RATE = "40mbit"
#: The seconds over which other work is observed before the trial begins.
LOOK_S = 0.5
#: A week: machines are moved, and share their hardware with others.
OLD_S = 7 * 86400.0
#: An hour. If a run lacks capacity so soon after a measurement, other work took it: a new measurement would show the
#: same.
FRESH_S = 3600.0
#: A host whose processors were busy for less than this share was quiet.
QUIET = 0.1

WARM_UP_S = 2.0
WINDOW_S = 2.0
#: The batch size with which a training step's duration is measured.
BATCH = 32
#: The module that measures these steps.
COST = "testbed.worker.cost"


class BudgetError(EmulationError):
    """The budget could not be measured."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The capacity that was measured on this host: bits per second over links, and seconds of training steps.

    Attributes:
        key: The host's kernel, cores and backend. A budget is used only where the key matches.
        bits_per_second: The sum over all links.
        step_seconds: The seconds of one training step of each model on one core.
        cores: The number of cores.
        measured_s: When it was measured, in Unix seconds.
        beside: The share of all processors that other work used during the measurement.
    """

    key: str
    bits_per_second: float
    step_seconds: Mapping[str, float]
    cores: int
    measured_s: float
    beside: float

    @property
    def age_s(self) -> float:
        """The seconds since it was measured."""
        return time.time() - self.measured_s

    def __str__(self) -> str:
        day = time.strftime("%d %B %Y, %H:%M", time.localtime(self.measured_s))
        return f"measured on {day}" + (
            f" while other work took {self.beside:.0%} of the processors" if self.beside > QUIET else ""
        )


@dataclass(frozen=True, slots=True)
class Need:
    """The most that an experiment asks of the host at once: every link at its highest rate, every worker computing."""

    bits_per_second: float
    cores: float

    def excess(self, budget: Budget, scale: float) -> str | None:
        """Return why the experiment does not fit and what would fit, for every shortage; None if it fits."""
        shortages = []
        usable = budget.bits_per_second * USABLE
        if self.bits_per_second > usable:
            fits = scale * usable / self.bits_per_second
            shortages.append(
                f"its links carry up to {self.bits_per_second / 1e6:.0f} Mbit/s together, this host can carry "
                f"{usable / 1e6:.0f} Mbit/s; a scale of {_two_digits(fits, ROUND_DOWN):g} would fit (now {scale:g})"
            )
        if self.cores > budget.cores:
            shortages.append(
                f"its workers need {self.cores:.1f} cores, this host has {budget.cores}; declare a step time "
                f"{_two_digits(self.cores / budget.cores, ROUND_UP):g} times as long, or fewer workers"
            )
        return "; and ".join(shortages) or None


def _two_digits(value: float, rounding: str) -> float:
    """Round to two significant digits, in the direction in which the suggested value fits."""
    return float(Decimal(value).normalize(Context(prec=2, rounding=rounding)))


def need(experiment: Experiment, budget: Budget) -> Need:
    """Return an experiment's need, including the networks it swaps to and the rates that its events set."""
    networks = (experiment.topology, *experiment.networks.values())
    scale, events = experiment.spec.scale, experiment.spec.events
    changes = [event.change.scaled(scale) for event in events if event.change is not None]
    peak_bps = max(_peak(topology, changes) for topology in networks)
    step_time = experiment.spec.compute.step_time
    if experiment.spec.program is not None or not step_time:
        return Need(peak_bps, cores=0.0)  # the computation of a program, or of an undeclared step, is unknown
    train = experiment.spec.own_train
    cost = _step_cost(train.model, budget) * train.batch / BATCH
    return Need(peak_bps, cores=sum(cost * w.speed / step_time for w in experiment.topology.workers))


def _step_cost(model: str, budget: Budget) -> float:
    """Return the seconds of a step of BATCH samples on one core, measured or scaled by size from the largest model.

    A step multiplies with every parameter. The figure is a little high for larger models, whose matrices use a core
    better (2.9 times as long for 3.3 times the parameters). `synthetic` computes next to nothing.
    """
    if model in budget.step_seconds or model not in PARAMETERS:
        return budget.step_seconds.get(model, 0.0)
    largest = max(budget.step_seconds, key=lambda name: PARAMETERS[name])
    return budget.step_seconds[largest] * PARAMETERS[model] / PARAMETERS[largest]


def _peak(topology: Topology, changes: Iterable[LinkChange]) -> float:
    """Return the bit/s of all links, each at its highest rate: of its file or its trace, or of the changes to it.

    A row of a trace without a rate leaves the link the rate of its file.
    """
    peaks = {}
    for name, link in topology.links.items():
        own_bps, rows = link.state.rate_bps, link.trace.rows if link.trace else ()
        peaks[name] = max([own_bps if row.rate_bps is None else row.rate_bps for row in rows], default=own_bps)
    for change in changes:
        if change.rate is not None and change.link in peaks:
            peaks[change.link] = max(peaks[change.link], change.rate)
    return sum(peaks.values())


def host_budget(backend: str) -> Budget | None:
    """Return the budget kept for this host and backend; None if there is none, or only an old one."""
    budget = _kept()
    return budget if budget and budget.key == _key(backend) and budget.age_s <= OLD_S else None


def contradict() -> None:
    """Drop the kept budget because a run has shown that it is wrong, unless it is fresh."""
    budget = _kept()
    if budget is None or budget.age_s > FRESH_S:
        with suppress(OSError):  # the file is only a cache: a run goes on without it
            KEPT.unlink(missing_ok=True)


def _kept() -> Budget | None:
    try:
        return Budget(**json.loads(KEPT.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def known_budget(choice: Backend) -> Budget:
    """Return the bit/s and training steps that this host can carry, measured in five seconds if no figure is kept.

    Raises:
        ShapingError: The backend does not work here.
        BudgetError: The measurement failed.
    """
    with open_shaper(choice) as shaper:
        backend = shaper.name
    return host_budget(backend) or measure_budget(backend)


def measure_budget(backend: str) -> Budget:
    """Measure this host's budget in about five seconds, and keep it if the disk can be written.

    Raises:
        BudgetError: The trial failed.
    """
    # Two first runs may measure at the same time and get less each; the later figure is kept.
    meter = CpuMeter()
    time.sleep(LOOK_S)
    beside = meter.read()
    carried = _carry(f"budget-{os.getpid()}", backend)
    budget = Budget(_key(backend), carried, _step_seconds(), os.cpu_count() or 1, time.time(), beside)
    with suppress(OSError):  # as in `contradict`
        write_json(KEPT, asdict(budget))
    return budget


def _key(backend: str) -> str:
    return f"{platform.release()} {platform.machine()}, {os.cpu_count()} cores, {backend}"


def _carry(name: str, backend: str) -> float:
    leaves = [f"leaf{i}" for i in range(2 * PAIRS)]
    value = {
        "name": "budget",
        "switch": "bridge",  # the trial measures links, and a bridge starts at once
        "sites": {"hub": {"workers": 0}} | {leaf: {"workers": 1} for leaf in leaves},
        "links": [{"between": ["hub", leaf], "rate": LINK_RATE, "delay": "5ms"} for leaf in leaves],
    }
    topology = Topology.from_value(value, Path("budget"))
    from testbed.emulation.testbed import Testbed  # which needs Mininet; `doctor` says where it is missing

    with Testbed(topology, name=name, backend=backend, workers="namespaces") as testbed:  # type: ignore[arg-type]
        carried = _fill(testbed.network)
    if not carried:
        raise BudgetError("no traffic arrived over the trial network; `testbed doctor` says what this machine lacks")
    return carried


def _fill(network: Network) -> float:
    """Keep all links full for a while; return the arrived bit/s divided by the share of the processors used."""
    workers = network.topology.workers
    pairs = list(zip(workers[::2], workers[1::2], strict=True))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        flows = [*pairs, *((b, a) for a, b in pairs)]
        for _, target in flows:
            processes.append(_start(network, target, ["iperf3", "-s", "-1", "--forceflush"]))
        for server in processes:
            _await_listening(server)
        for source, target in flows:
            seconds = str(int(WARM_UP_S + WINDOW_S + 4))
            processes.append(_start(network, source, ["iperf3", "-c", network.address(target), "-t", seconds]))
        time.sleep(WARM_UP_S)
        before, began, busy = sum(network.arrived_bytes().values()), time.monotonic(), CpuMeter()
        time.sleep(WINDOW_S)
        arrived = sum(network.arrived_bytes().values()) - before
        return arrived * 8 / (time.monotonic() - began) / busy.read()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _await_listening(server: subprocess.Popen[bytes]) -> None:
    """Wait until an iperf3 server listens: it refuses an earlier client, whose flow would carry nothing."""
    assert server.stdout is not None
    if not any(b"listening" in line for line in server.stdout):
        raise BudgetError("iperf3 exited before it was ready; `testbed doctor` says what this machine lacks")


def _start(network: Network, worker: Worker, command: list[str]) -> subprocess.Popen[bytes]:
    return network.container(worker.name).popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _step_seconds() -> dict[str, float]:
    """Return the seconds of each model's training step, measured in a process that imports PyTorch.

    The process is one of this host, or of a container with the worker image where this environment has no PyTorch.
    """
    if importlib.util.find_spec("torch") is None:
        program = f"import runpy, sys; sys.argv = ['', '{BATCH}']; runpy.run_module('{COST}', run_name='__main__')"
        client = engine.connect()
        try:
            return dict(json.loads(python_output(client, ensure_worker_image(client, lambda _: None), program)))
        except DockerException as error:
            raise BudgetError(f"the duration of a training step could not be measured: {error}") from error
    command = [sys.executable, "-P", "-m", COST, str(BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BudgetError(f"the duration of a training step could not be measured:\n{done.stderr.strip()}")
    return dict(json.loads(done.stdout))
