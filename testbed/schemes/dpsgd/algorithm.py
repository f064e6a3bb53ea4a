"""D-PSGD's members are Hop's: their rules are its standard mode."""

from __future__ import annotations

from testbed.schemes.hop.algorithm import build

__all__ = ["build"]
