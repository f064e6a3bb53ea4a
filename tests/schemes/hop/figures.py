"""Hop's figures under simulated time: `python -m tests.schemes.hop.figures` prints the table.

16 members, 200 iterations, a step of one time unit, no network delay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

from testbed.planning.graphs import Graph, make_graph
from testbed.schemes.hop.reception import HopRules
from tests.schemes.hop.hops import hop_members
from tests.sync.gossip.simulation import Conditions, Simulation

MEMBERS = tuple(f"w{index}" for index in range(16))
ITERATIONS = 200
STANDARD = HopRules()
BACKUP = HopRules(max_ig=4, backup=1)
#: Two pairs of stragglers, each one's neighbour a straggler too.
FOUR_TOGETHER = ("w0", "w1", "w8", "w9")


def random_slowdown(seed: int, factor: float = 6, probability: float = 1 / 16) -> Callable[[str, int], float]:
    """Return the times of steps: `factor` units with that probability, for the same steps in every mode."""

    @cache
    def slow(member: str, iteration: int) -> bool:
        return Random(f"{seed} {member} {iteration}").random() < probability

    return lambda member, iteration: factor if slow(member, iteration) else 1.0


def stragglers(*names: str, factor: float = 4) -> Callable[[str, int], float]:
    return lambda member, iteration: factor if member in names else 1.0


def time_to_finish(graph: Graph, rules: HopRules, step_time: Callable[[str, int], float]) -> float:
    return Simulation(hop_members(graph, rules, ITERATIONS), Conditions(step_time)).run()


def leaping(max_jump: int, quantile: float = 0.0) -> HopRules:
    return HopRules(max_ig=4, backup=1, max_jump=max_jump, quantile=quantile)


def random_rows(graph: Graph, seed: int) -> tuple[float, float]:
    """Return the times of the standard mode, and of one backup worker with max_ig 4, under the same slowdown."""
    slow = random_slowdown(seed)
    return time_to_finish(graph, STANDARD, slow), time_to_finish(graph, BACKUP, slow)


def main() -> None:
    for family in ("ring", "ring-based", "double-ring"):
        graph = make_graph(family, MEMBERS)
        print(f"\n{family}")
        for seed in range(3):
            standard, backup = random_rows(graph, seed)
            print(f"  random slowdown, seed {seed}: {standard:.0f} -> {backup:.0f} with a backup worker")
        one = stragglers("w0")
        for text, rules in (("no leaps", BACKUP), ("jump <= 2", leaping(2)), ("jump <= 10", leaping(10))):
            print(f"  one 4x straggler, {text}: {time_to_finish(graph, rules, one):.0f}")
        four = stragglers(*FOUR_TOGETHER)
        for quantile in (0.0, 0.5, 0.75):
            time = time_to_finish(graph, leaping(10, quantile), four)
            print(f"  four 4x stragglers, jump <= 10, quantile {quantile}{' (min)' * (not quantile)}: {time:.0f}")


if __name__ == "__main__":
    main()
