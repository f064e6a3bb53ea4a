"""Stretches of a run: rounds that follow one another, and what members and links were meanwhile, on average. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from testbed.link import LinkState
from testbed.run.conclusion.summary import Record, RoundFigures

#: What is known of a stretch are means over its rounds, and a bound of their mean may miss one round's: so it has some.
LEAST_ROUNDS = 8

#: A run has this many at most: the network changes, and is planned for anew in each.
MOST_STRETCHES = 32


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many `rounds`, from the end of the one before them (Unix time) to the end of the last.

    `compute_s` is what each member took from having a round's mean to entering the next round.
    """

    rounds: int
    began_s: float
    ended_s: float
    compute_s: Mapping[str, float]


def stretches(rounds: Sequence[RoundFigures], reports: Sequence[Record]) -> list[Stretch]:
    """The rounds after the first in stretches of about one length; none of fewer than two rounds."""
    count = max(1, min(MOST_STRETCHES, len(rounds) // LEAST_ROUNDS))
    ends = [rounds[number * (len(rounds) - 1) // count] for number in range(count + 1)] if rounds else []
    finished = {(report["member"], report["round"]): report["finished_s"] for report in reports}
    found = []
    for before, last in pairwise(ends):
        gaps: dict[str, list[float]] = {}
        for report in reports:
            came_s = finished.get((report["member"], report["round"] - 1))
            if before.number < report["round"] <= last.number and came_s is not None:
                gaps.setdefault(report["member"], []).append(report["started_s"] - came_s)
        compute_s = {member: fmean(own) for member, own in gaps.items()}
        if compute_s:
            found.append(Stretch(last.number - before.number, before.finished_s, last.finished_s, compute_s))
    return found


def states_over(stretch: Stretch, before: Mapping[str, LinkState], records: Sequence[Record]) -> dict[str, LinkState]:
    """The links of a stretch with their mean rates and least delays; `before` is how they were when it began.

    A link that was down all the time stays down; one that was for a part of it carried nothing then.
    """
    found = {}
    for name, first in before.items():
        own = [record for record in records if record["link"] == name]
        own = [record for record in own if stretch.began_s < record["at_s"] < stretch.ended_s]
        times = [stretch.began_s, *(record["at_s"] for record in own), stretch.ended_s]
        rates = [first.rate_bps * first.up, *(record["rate_bps"] * record["up"] for record in own)]
        bits = sum(rate * (until - since) for rate, (since, until) in zip(rates, pairwise(times), strict=True))
        mean = bits / (stretch.ended_s - stretch.began_s)
        delay_s = min([first.delay_s, *(record["delay_s"] for record in own)])
        found[name] = LinkState(mean or first.rate_bps, delay_s, up=mean > 0)
    return found
