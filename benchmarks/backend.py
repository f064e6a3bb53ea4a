"""Time a step of an unchanged DistributedDataParallel script with the backend `wan` in place of gloo.

    sudo python -m benchmarks.backend [--case NAME]

The script names gloo and has 24 MiB of gradients; `TESTBED_BACKEND=wan` is the only difference. The networks are cases
a, b and c of `benchmarks.allreduce`; each is built once for both backends, which run one after the other. `wan` has
the controller that `testbed launch --backend wan` starts: it begins with the configured network and follows the
members' measurements.

A row is a network: the median seconds of the steps after a warm-up, by the slowest rank in each step. With gloo a step
of case c takes 26 s. Needs root, and the package installed (`make setup`), so that PyTorch finds the backend. The exit
code is 1 where a claim is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.allreduce import PORT, Case, Team, cases, team
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.launch.ranks import Rank
from testbed.run.programs.program_controller import ProgramController

#: Steps that are left out. DDP arranges its buckets after the first one, and by the third members have measured their
#: paths.
WARM_UP = 3
STEPS, QUICK_STEPS = 12, 5
BACKENDS = ("wan", "gloo")
#: Claims: the most of a step's time under `wan`, divided by that under gloo.
CLAIMED = {"a": 1.05, "b": 0.75, "c": 0.4}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The seconds of a case's steps by backend, and the swaps of plans meanwhile."""

    case: Case
    seconds: Mapping[str, Sequence[float]]
    swaps: int

    @property
    def ratio(self) -> float:
        """The median seconds under `wan` divided by those under gloo."""
        return median(self.seconds["wan"]) / median(self.seconds["gloo"])


def measure(case: Case, shaping: Any, steps: int) -> StepTimes:
    """Measure both backends on one network."""
    seconds: dict[str, Sequence[float]] = {}
    swaps = 0
    with team(case, shaping) as members:
        for backend in BACKENDS:
            progress(f"({case.name}) {case.title}: {backend}")
            if backend == "wan":
                seconds[backend], swaps = _by_plans(case, members, steps)
            else:
                seconds[backend] = _train(members, _ranks(members), backend, steps)
    return StepTimes(case, seconds, swaps)


def _ranks(members: Team) -> list[Rank]:
    first = next(iter(members.addresses.values()))
    common = {"MASTER_ADDR": first, "MASTER_PORT": str(PORT), "WORLD_SIZE": str(len(members.addresses))}
    common |= {"GLOO_SOCKET_IFNAME": members.interface}
    return [Rank(member, member, {**common, "RANK": str(i)}) for i, member in enumerate(members.addresses)]


def _by_plans(case: Case, members: Team, steps: int) -> tuple[list[float], int]:
    assert case.network is not None
    ranks = _ranks(members)
    with tempfile.TemporaryDirectory(prefix="backend-") as folder:
        told = {"TESTBED_BACKEND": "wan"}
        sums = ProgramController(case.network, None, ranks, Path(folder), Path(folder), told)
        with sums:
            seconds = _train(members, [sums.with_environment(rank, on_host=True) for rank in ranks], "wan", steps)
    return seconds, sum(swap["active_s"] is not None for swap in sums.outcome["swaps"])


def _train(members: Team, ranks: Sequence[Rank], backend: str, steps: int) -> list[float]:
    """Run the script on all ranks. Returns the seconds of each step, by the slowest rank.

    Raises:
        RuntimeError: a rank failed, or had another backend.
    """
    command = [sys.executable, "-m", "benchmarks.support.ddp_script", str(WARM_UP + steps)]
    with ExitStack() as stack:
        processes = []
        for rank in ranks:
            process = subprocess.Popen(
                [*members.entering[rank.worker], *command],
                env=os.environ | rank.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            processes.append(process)
        outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(errors)
    printed = [json.loads(said.splitlines()[-1]) for said, _ in outputs]
    if {each["backend"] for each in printed} != {backend}:
        raise RuntimeError(
            f"the script ran with the backend {printed[0]['backend']}, not {backend}; install the package (make setup)"
        )
    return [max(each) for each in zip(*(each["seconds"][WARM_UP:] for each in printed), strict=True)]


def main() -> int:
    """Measure the cases and print them. Returns 1 where a claim is missed, else 0."""
    known = {case.name: case for case in cases() if case.name in CLAIMED}
    parser = Options(__doc__)
    parser.add_argument("--case", action="append", choices=known, help="measure this case only; may be repeated")
    parser.add_steps(STEPS, QUICK_STEPS)
    parser.add_argument("--backend", default="userspace", help="the backend that shapes the links")
    wanted = parser.parse()
    found = [measure(known[name], wanted.backend, wanted.steps) for name in wanted.case or known]
    rows = [
        [
            f"({each.case.name}) {each.case.title}",
            *(f"{median(each.seconds[backend]):.2f}" for backend in BACKENDS),
            f"{each.ratio:.2f} (claimed ≤ {CLAIMED[each.case.name]:.2f})",
            str(each.swaps),
        ]
        for each in found
    ]
    columns = ("case", "wan s", "gloo s", "wan / gloo", "plan swaps")
    figures = {
        each.case.name: {"seconds": each.seconds, "ratio": each.ratio, "claimed": CLAIMED[each.case.name]}
        for each in found
    }
    show(
        [Table("Median seconds of a step of an unchanged DDP script, 24 MiB of gradients", columns, rows)],
        {"steps": wanted.steps, "cases": figures},
        as_json=wanted.json,
        backend=wanted.backend,
    )
    return 0 if all(each.ratio <= CLAIMED[each.case.name] for each in found) else 1


if __name__ == "__main__":
    run_program(main)
