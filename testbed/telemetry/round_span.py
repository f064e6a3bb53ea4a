"""The length of a round, as the terminal, the page, reports, summaries and comparisons define it. Pure.

A round lasts from the moment its last member enters it to the moment its last member finishes it. The computing before
it is left out, since no plan changes that, so the rounds of a training add up to less than the training took. The time
from the end of one round to the end of the next, computing included, is called a whole round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: The definition in headings and captions.
MEANING = "from the last worker's entry to the last worker's end"


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """The time of a round: from the last member's entry to the last member's end, in Unix seconds."""

    entered_s: float
    finished_s: float

    @property
    def seconds(self) -> float:
        """The length of the round."""
        return self.finished_s - self.entered_s


def span_of(moments: Iterable[tuple[float, float]]) -> RoundSpan:
    """Return a round's span: from the moment when all members had entered it to the moment when all had finished."""
    entered, finished = zip(*moments, strict=True)
    return RoundSpan(max(entered), max(finished))


def time_spent(seconds: float, step_s: float, waited: Mapping[str, float], gossips: bool = False) -> dict[str, float]:
    """Return the seconds that a member spent computing, waiting and sending in a round.

    Args:
        seconds: The length of the round, or of an iteration.
        step_s: The steps before the round or in the iteration, up to their declared time.
        waited: The seconds that the member waited for each peer.
        gossips: The member gossips: its iteration contains its steps, and its waits follow one another.

    Returns:
        `compute_s` is the steps, `wait_s` the wait for the last peer, or for all that a gossiping member waited for,
        `send_s` the rest.
    """
    whole = max(seconds - (step_s if gossips else 0.0), 0.0)
    wait = min(sum(waited.values()) if gossips else max(waited.values(), default=0.0), whole)
    return {"compute_s": step_s, "wait_s": wait, "send_s": whole - wait}
