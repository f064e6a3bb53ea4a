"""Kills each member at each phase of a round; members come back, and all must end with the same bits.

`python -m tests.sync.faults --members 9` kills each of 9 members at each phase of a round, restarts it each time, and
then stops the controller for 20 s; `--seed` draws another order. With `--spared N` the first N members are never
killed, and the last line has the heap of the first, after the first tenth of the kills and after all.
tests/sync/cluster.py describes the checks.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from itertools import cycle, islice
from statistics import median

from tests.sync.cluster import PHASES, Kill, cluster, reported, round_seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sync.faults", description=__doc__)
    parser.add_argument("--members", type=int, default=9)
    parser.add_argument("--step", type=float, default=0.2, metavar="S", help="a step's time")
    parser.add_argument("--away", type=float, default=20.0, metavar="S", help="how long the controller is away")
    parser.add_argument("--kills", type=int, metavar="N", help="how many; by default each member in each phase")
    parser.add_argument("--spared", type=int, default=0, metavar="N", help="the first N members are never killed")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.spared >= arguments.members:
        parser.error(f"--spared {arguments.spared}: no member is left to kill; write less than {arguments.members}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes of the cluster as well
    kills: list[Kill] = []
    heaps = []
    with cluster(arguments.members, arguments.step, arguments.seed) as made:
        made.await_round(8)
        usual_s = round_seconds(made)
        cases = [(name, phase) for phase in PHASES for name in made.names[arguments.spared :]]
        random.Random(arguments.seed).shuffle(cases)
        wanted = arguments.kills or len(cases)
        for name, phase in islice(cycle(cases), wanted):
            killed = made.kill(name, phase)
            assert killed is not None
            kills.append(killed)
            if len(kills) in (-(-wanted // 10), wanted):
                heaps.append(made.records("m0")[-1]["heap"])
            print(
                f"{name} died when {phase}: recovered in {killed.recovered_s:.2f} s, back in {killed.back_s:.2f} s",
                flush=True,
            )
        before = made.last_round("m0")
        made.kill_controller()
        time.sleep(arguments.away)
        during = made.last_round("m0") - before
        made.start_controller()
        made.until(lambda: bool(reported(made)))
        final = made.end()
        rounds = made.check()
    recovered = sorted(kill.recovered_s for kill in kills)
    print(
        f"{len(kills)} kills over {rounds} rounds, all bit-identical, every mean right by its slices; a round took "
        f"{usual_s:.2f} s, the next one after a death {median(recovered):.2f} s at the median and "
        f"{recovered[-1]:.2f} s at worst; {sum(kill.slices > 1 for kill in kills)} rounds have slices of two "
        f"denominators; {during} rounds while the controller was away for {arguments.away:g} s; at its "
        f"end: {final['state']}, identical {final['identical']}"
    )
    if arguments.spared:
        used, free = ([f"{heap[i] / 2**20:.1f}" for heap in heaps] for i in (0, 1))
        print(f"heap of m0, MiB: {' to '.join(used)} in use, {' to '.join(free)} free and kept")
    return 0 if recovered[-1] < 3 * usual_s and final["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
