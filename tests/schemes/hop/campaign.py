"""Many random cases of Hop: `python -m tests.schemes.hop.campaign --cases 10000`, or `--seed N` for one.

Every case must end, and hold its bounds and its tokens at every step; some case must attain each finite bound.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from tests.schemes.hop.cases import MODES, Case
from tests.schemes.hop.swapper import run_swaps

#: The sides of each bound, which some case must attain. An acknowledgement's holds a member back by 2 a hop in the
#: parallel form only, where a member is still computing when it acknowledges.
SIDES = {
    "standard": {"arrival"},
    "notify-ack": {"arrival", "grant (parallel)"},
    "standard + tokens": {"arrival", "grant"},
    "backup": set(),
    "backup + tokens": {"grant"},
    "backup + tokens + leaps": {"grant"},
    "staleness": {"arrival"},
    "staleness + tokens": {"arrival", "grant"},
    "staleness + tokens + leaps": {"arrival", "grant"},
}


@dataclass
class Tally:
    """Counts of cases by mode, of cases with leaps, and of cases that attained each side of the bound."""

    cases: Counter[str] = field(default_factory=Counter)
    leapt: Counter[str] = field(default_factory=Counter)
    attained: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, case: Case) -> None:
        invariants = case.run()
        self.cases[case.mode] += 1
        self.leapt[case.mode] += invariants.leaps > 0
        for side in case.attained(invariants):
            self.attained[case.mode, self._side(case, side)] += 1

    def _side(self, case: Case, side: str) -> str:
        if case.mode == "notify-ack" and side == "grant":
            return f"grant ({'parallel' if case.rules.parallel else 'serial'})"
        return side

    def missing(self) -> list[str]:
        """Return the bounds that no case attained, and a bound that no case should have attained but one did."""
        missing = [f"{mode}: {side}" for mode in MODES for side in SIDES[mode] if not self.attained[mode, side]]
        missing += [f"{mode}: no leap" for mode in MODES if "leaps" in mode and not self.leapt[mode]]
        if self.attained["notify-ack", "grant (serial)"]:
            missing.append("notify-ack: a serial case came up to the parallel form's bound")
        return missing

    def table(self) -> str:
        lines = [f"{'mode':<28}{'cases':>7}{'leapt':>7}  attained by"]
        for mode in MODES:
            sides = ", ".join(f"{side} {self.attained[mode, side]}" for side in sorted(SIDES[mode])) or "no bound"
            lines.append(f"{mode:<28}{self.cases[mode]:>7}{self.leapt[mode]:>7}  {sides}")
        return "\n".join(lines)


def run_cases(seeds: Iterable[int]) -> Tally:
    """Run the cases of `seeds`. Raises AssertionError that says how to replay the first failed case."""
    tally = Tally()
    for seed in seeds:
        tally.add(Case.of(seed))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cases", type=int, default=1000, help="so many cases, seeds from --first on")
    which.add_argument("--seed", type=int, help="the one case of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--swaps", action="store_true", help="swap each case's graph, with deaths and new members")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.cases) if given.seed is None else [given.seed]
    if given.swaps:
        done = [run_swaps(seed) for seed in seeds]
        swaps, given_up = sum(len(one.eras) - 1 for one in done), sum(one.given_up for one in done)
        came = sum(len(one.eras[-1].graph.members) - len(one.eras[0].graph.members) for one in done)
        died = sum(len(one.died) for one in done)
        print(f"{len(done)} cases: {swaps} swaps, {given_up} given up; {came} members came, {died} died and came again")
        return 0
    tally = run_cases(seeds)
    print(tally.table())
    if given.seed is not None:
        return 0
    for missing in tally.missing():
        print(f"not attained: {missing}", file=sys.stderr)
    return 1 if tally.missing() else 0


if __name__ == "__main__":
    sys.exit(main())
