"""Links that behave as asked: one interface, a kernel backend and a userspace backend, probed and never guessed."""

from testbed.emulation.shaping.base import LinkCounters, Port, Shaper, ShapingError
from testbed.emulation.shaping.probe import available_backends, open_shaper

__all__ = ["LinkCounters", "Port", "Shaper", "ShapingError", "available_backends", "open_shaper"]
