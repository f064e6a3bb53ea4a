"""The outer optimizer of schemes that move by the members' mean change."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import Checked, limited


@dataclass(frozen=True)
class OuterOptions(Checked):
    """SGD with Nesterov momentum on the mean change (DiLoCo, arXiv 2311.08105)."""

    learning_rate: float = limited(0.7, gt=0)
    momentum: float = limited(0.9, ge=0, lt=1)


#: What DiLoCo's authors take.
NESTEROV = OuterOptions()
