"""HALoS: workers push what they changed to a server of their site, sites to one of all, and nobody waits for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.options import Checked, Options, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class DelayedOptions(Checked):
    """Delayed Nesterov: the momentum moves, and is used, in each `buffer`-th step (arXiv 2401.09135)."""

    learning_rate: float = limited(0.2, gt=0)
    momentum: float = limited(0.9, ge=0, lt=1)
    buffer: int = limited(16, ge=1)


@dataclass(frozen=True)
class GlobalOptions(DelayedOptions):
    """The same, with what the authors take for the server of all."""

    learning_rate: float = limited(0.15, gt=0)
    momentum: float = limited(0.5, ge=0, lt=1)
    buffer: int = limited(2, ge=1)


#: What the authors take for a site's server, and for that of all.
SITE = DelayedOptions()
GLOBAL = GlobalOptions()


@dataclass(frozen=True)
class HalosOptions(Options):
    """`every` local steps of the fastest worker to a push, of others as many as they can in its time. A site tells what
    `accumulate` pushes have come to, and moves by a part `merge` towards the model that comes back. What travels
    between sites goes through the `codec`."""

    every: int = limited(8, ge=1)
    accumulate: int = limited(32, ge=1)
    merge: float = limited(0.25, gt=0, le=1)
    site: DelayedOptions = SITE
    overall: GlobalOptions = GLOBAL
    codec: Literal["fp32", "fp16", "bf16"] = "fp32"

    @property
    def local_steps(self) -> int:
        return self.every


SCHEME = Scheme(
    name="halos",
    options=HalosOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    elastic=True,
    survives=True,
    alike=False,
    source="Kim et al., ICML 2025, arXiv 2506.04531, and the authors' code",
)
