"""Post-local SGD: gradients first, when changes are large, and local SGD from then on."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps


@dataclass(frozen=True)
class PostLocalSgdOptions(LocalSteps):
    """The first `start` steps by gradients, then `every` local steps to a round."""

    start: int = limited(100, ge=1)


SCHEME = Scheme(
    name="post_local_sgd",
    options=PostLocalSgdOptions,
    exchange="all-reduce",
    planned=True,
    source="Lin et al. 2020, arXiv 1808.07217, section 3",
)
