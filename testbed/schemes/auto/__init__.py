"""The scheme that the controller chooses, live: gradients, or local steps with their merge and codec.

Members begin with gradients. What they do from a round on stands in the plan that it goes by, so that a change of
scheme is a swap as any other. `docs/schemes.md` has how the controller chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, Options
from testbed.schemes.scheme import Scheme

#: To a round, whatever is chosen.
MOST_STEPS = 128


@dataclass(frozen=True)
class AutoOptions(Options):
    """None: what there is to choose, the controller chooses. An experiment's `rounds` count steps here."""

    @property
    def among_all(self) -> bool:
        return True  # some of what is chosen

    @property
    def local_steps(self) -> int:
        return MOST_STEPS

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit("codec", "the controller chooses it", "leave it out, or the `strategy` that is to have it")


SCHEME = Scheme(
    name="auto",
    options=AutoOptions,
    exchange="all-reduce",
    planned=True,
    conducted=True,
    source="ours: docs/schemes.md",
)
