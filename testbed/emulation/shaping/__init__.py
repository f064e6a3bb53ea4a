"""Shaped links: one interface, two backends, chosen by trying them out."""

from testbed.emulation.shaping.base import LinkCounters, Port, Shaper, ShapingError
from testbed.emulation.shaping.probe import available_backends, open_shaper

__all__ = ["LinkCounters", "Port", "Shaper", "ShapingError", "available_backends", "open_shaper"]
