"""A step of an unchanged DistributedDataParallel script, with the backend `wan` in the place of gloo.

The script says gloo, and has 24 MiB of gradients; TESTBED_BACKEND=wan is all that makes the difference. Networks are
the cases a, b and c of `benchmarks.allreduce`, each of which is up for both, one after the other. `wan` goes by what
`testbed launch --backend wan` starts: a controller that begins with the network as configured, and goes on by what
members measure. Seconds are the median of the steps after a warm-up, of the slowest rank in each. Needs root, and the
package installed as it is here (`make setup`), so that PyTorch finds the backend.
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
from benchmarks.support.table import Table, progress, show
from testbed.launch.ranks import Rank
from testbed.run.programs.program_controller import ProgramController

#: Buckets are arranged after the first step, and members have measured their paths by then.
WARM_UP = 3
STEPS, QUICK_STEPS = 12, 5
BACKENDS = ("wan", "gloo")
#: What is claimed of a step's time, `wan` over gloo.
CLAIMED = {"a": 1.05, "b": 0.75, "c": 0.4}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A case's seconds a step, by backend, and the swaps of plans meanwhile."""

    case: Case
    seconds: Mapping[str, Sequence[float]]
    swaps: int

    @property
    def ratio(self) -> float:
        """Those of wan over those of gloo."""
        return median(self.seconds["wan"]) / median(self.seconds["gloo"])


def measure(case: Case, shaping: Any, steps: int) -> StepTimes:
    """Both backends, on one network."""
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
    """The slowest rank's seconds of each step. RuntimeError where a rank fails, or had another backend."""
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
            f"the script had {printed[0]['backend']}, not {backend}: install the package anew (make setup)"
        )
    return [max(each) for each in zip(*(each["seconds"][WARM_UP:] for each in printed), strict=True)]


def main() -> int:
    """Measure and print."""
    known = {case.name: case for case in cases() if case.name in CLAIMED}
    parser = Options(__doc__)
    parser.add_argument("--case", action="append", choices=known, help="only this one; may be repeated")
    parser.add_argument("--steps", type=int, help=f"measured steps (default {STEPS}; with --quick {QUICK_STEPS})")
    parser.add_argument("--backend", default="userspace", help="what shapes the links")
    wanted = parser.parse()
    steps = wanted.steps or (QUICK_STEPS if wanted.quick else STEPS)
    found = [measure(known[name], wanted.backend, steps) for name in wanted.case or known]
    rows = [
        [
            f"({each.case.name}) {each.case.title}",
            *(f"{median(each.seconds[backend]):.2f}" for backend in BACKENDS),
            f"{each.ratio:.2f} (claimed ≤ {CLAIMED[each.case.name]:.2f})",
            str(each.swaps),
        ]
        for each in found
    ]
    columns = ("case", "wan s", "gloo s", "wan / gloo", "swaps of plans")
    figures = {
        each.case.name: {"seconds": each.seconds, "ratio": each.ratio, "claimed": CLAIMED[each.case.name]}
        for each in found
    }
    show(
        [Table("a step of an unchanged DDP script, 24 MiB of gradients, median seconds", columns, rows)],
        {"steps": steps, "cases": figures},
        as_json=wanted.json,
        backend=wanted.backend,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
