"""The input of the heuristic as arrays: links, computing power and labels of the members 0..n−1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.planning.constraints import GOODPUT, Floats, Ints
from testbed.planning.view import View


@dataclass(frozen=True, slots=True)
class Problem:
    """A view as the heuristic sees it."""

    names: tuple[str, ...]
    #: Each member's site, as a number; shape (n,).
    sites: Ints
    model_bytes: float
    #: Seconds per payload byte, and round trips in seconds; shape (n, n), infinite without an edge, 0 on the diagonal.
    s_per_byte: Floats
    rtt_s: Floats
    #: Seconds of a member's local step, and its steps in a round; shape (n,).
    step_s: Floats
    steps: Ints
    #: Each member's part of all samples; they add up to 1.
    weights: Floats
    #: Each member's samples by label; shape (n, labels), without columns if labels are unknown.
    labels: Floats

    @classmethod
    def of(
        cls,
        view: View,
        step_s: float,
        every: int,
        labels: Mapping[str, Sequence[float]],
        steps: Mapping[str, int] | None = None,
    ) -> Problem:
        """Return the problem of a view.

        Args:
            step_s: Seconds of a local step at speed 1.
            every: Steps of the fastest member in a round. The others take as many as they can in that time, at least
                one: h_i = clip(round(T·c_i/B), 1, every).
            labels: Each member's samples by label, or nothing.
            steps: Each member's steps in a round, in place of `every`.
        """
        names = view.names
        number = {name: i for i, name in enumerate(names)}
        s_per_byte, rtt_s = (np.full((len(names), len(names)), np.inf) for _ in range(2))
        for (source, target), edge in view.edges.items():
            pair = number[source], number[target]
            s_per_byte[pair] = 8 / (edge.rate_bps * GOODPUT)
            rtt_s[pair] = edge.rtt_s
        np.fill_diagonal(s_per_byte, 0)
        np.fill_diagonal(rtt_s, 0)
        speed = np.array([member.speed for member in view.members])
        known = {site: i for i, site in enumerate(view.sites())}
        counts = np.array([labels[name] for name in names], dtype=float) if labels else np.ones((len(names), 0))
        usual = np.clip(np.rint(every * speed / speed.max()), 1, every).astype(np.int64)
        samples = counts.sum(axis=1) if labels else np.ones(len(names))
        return cls(
            names=names,
            sites=np.array([known[member.site] for member in view.members]),
            model_bytes=float(view.model_bytes),
            s_per_byte=s_per_byte,
            rtt_s=rtt_s,
            step_s=step_s / speed,
            steps=np.array([steps[name] for name in names]) if steps else usual,
            weights=samples / samples.sum(),
            labels=counts,
        )

    def __len__(self) -> int:
        return len(self.names)
