"""Kills each member at each phase of a round; members come back, and all must end with the same bits.

`python -m tests.sync.faults --members 9` kills each of 9 members at each phase of a round, restarts it each time, and
then stops the controller for 20 s; `--seed` draws another order. tests/sync/cluster.py describes the checks.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from statistics import median

from tests.sync.cluster import PHASES, cluster, reported, round_seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sync.faults", description=__doc__)
    parser.add_argument("--members", type=int, default=9)
    parser.add_argument("--step", type=float, default=0.2, metavar="S", help="a step's time")
    parser.add_argument("--away", type=float, default=20.0, metavar="S", help="how long the controller is away")
    parser.add_argument("--kills", type=int, metavar="N", help="how many; by default each member in each phase")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes of the cluster as well
    kills = []
    with cluster(arguments.members, arguments.step, arguments.seed) as made:
        made.await_round(8)
        usual_s = round_seconds(made)
        cases = [(name, phase) for phase in PHASES for name in made.names]
        random.Random(arguments.seed).shuffle(cases)
        for name, phase in cases[: arguments.kills]:
            killed = made.kill(name, phase)
            assert killed is not None
            kills.append(killed)
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
    return 0 if recovered[-1] < 3 * usual_s and final["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
