"""Shaping that is done on hosts, as one shaper."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.emulation.shaping.base import Applied, Coming, LinkCounters, Port, Shaper, ShapingError
from testbed.link import LinkState
from testbed.scaleout.split.part import PartFacts
from testbed.scaleout.split.split import HostSamples


class HostsShaper(Shaper):
    """What shapes is on the hosts; here is what they say of it."""

    def __init__(self, parts: Mapping[str, PartFacts], samples: HostSamples) -> None:
        """ShapingError where hosts do not shape alike: figures of one run have one tolerance."""
        first = next(iter(parts.values()))
        if len({one.backend for one in parts.values()}) > 1:
            said = ", ".join(f"{host} {one.backend}" for host, one in parts.items())
            raise ShapingError(f"hosts shape differently ({said}): write `backend: userspace` in the experiment")
        self._backend, self._realtime = first.backend, first.realtime_shaping
        self._samples = samples

    @property
    def name(self) -> str:  # type: ignore[override]
        """The backend of all hosts."""
        return self._backend

    @property
    def realtime(self) -> bool | None:
        return self._realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Hosts attach their own."""

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, Coming] | None = None) -> None:
        """They were told."""

    def expect(self, coming: Mapping[str, Coming]) -> None:
        """They replay by themselves."""

    def applied(self) -> list[Applied]:
        return []

    def detach(self, link: str) -> None:
        """Hosts detach their own."""

    def counters(self) -> dict[str, LinkCounters]:
        return dict(self._samples.merged("counters"))

    def failure(self) -> str | None:
        return self._samples.failure

    def close(self) -> None:
        """Hosts close their own."""
