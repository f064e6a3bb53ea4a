"""What a manifest and a verdict say of the hosts of a network that is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testbed.scaleout.split.part import PartFacts
from testbed.scaleout.split.plan import SplitPlan
from testbed.scaleout.split.split import HostSamples
from testbed.scaleout.split.verdict import clock_bound_s, reasons


@dataclass(frozen=True)
class SplitRecord:
    """The plan, and what each host said of its part."""

    plan: SplitPlan
    parts: Mapping[str, PartFacts]

    def of(self, samples: HostSamples) -> dict[str, Any]:
        """For the manifest: where each site is, what was taken off, and what is known of clocks by now."""
        seen = samples.host_seen()
        return {
            "hosts": {
                **self.plan.record(),
                "parts": {name: asdict(facts) for name, facts in self.parts.items()},
                "clocks": {name: asdict(host.clock) for name, host in seen.items() if host.clock is not None},
                "time_line_bound_s": clock_bound_s(seen),
            }
        }

    def reasons(self, samples: HostSamples) -> list[str]:
        """Why the hosts make figures suspect."""
        return reasons(samples.paths_seen(self.plan.cut_hosts), samples.host_seen())
