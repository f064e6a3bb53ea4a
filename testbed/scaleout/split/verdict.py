"""What of the hosts makes a run of a split network suspect: their network, their clocks, their processors. Pure.

Every tolerance has the reason for its size. What was never measured is a reason too: a verdict that knows nothing of
the hosts is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.run.conclusion.verdict import CPU_BUSY, CPU_BUSY_SHARE, STARVED
from testbed.scaleout.clock import ClockEstimate, ClockSample, best_of_stretches
from testbed.scaleout.split.placing import Pair

#: What a cut link's round trip may be off because its hosts' has changed: as much as a link's own, under `userspace`.
UNDERLAY_TOLERANCE_S = 1e-3
#: This part of the stretches of two seconds may be beyond it: something else may have used the hosts' network …
UNDERLAY_SHARE = 0.10
#: … and this part of probes may be lost: what the hosts' network loses, links lose that declare none.
PROBES_LOST = 0.01

#: Moments that members tell go by their hosts' wall clocks; rounds are compared to hundredths of a second. Hosts that
#: keep time by NTP are within a millisecond on one network, within ten over the internet.
WALL_TOLERANCE_S = 10e-3
#: How far a host's replay may have come to run ahead of another's: a tick that late is one that is not on time.
REPLAY_TOLERANCE_S = 5e-3
#: A crystal is within 50 ppm, and a clock that is slewed hides nothing below this.
DRIFT_TOLERANCE = 100e-6
#: What an estimate may be off, in standard errors.
CERTAIN = 3.0

#: A process that was to wake up in 100 ms and came so much later had no processor meanwhile.
LATE_S = 0.1


@dataclass(frozen=True)
class PathSeen:
    """What probes between two hosts have seen while the run went on: samples, and how many had no answer. `floor_s` is
    what was taken off one way of each link between them."""

    samples: Sequence[ClockSample]
    sent: int
    lost: int
    floor_s: float


@dataclass(frozen=True)
class HostSeen:
    """What was seen of a host, sample by sample: its processors' busy share, and by how many seconds its process was
    late at the worst. `clock` is against the holder's, None where it was never read. `ran_ahead_s` is by how much its
    replay has come to run ahead of the holder's time line for certain, or behind it."""

    cpu: Sequence[float]
    late_s: Sequence[float]
    clock: ClockEstimate | None
    ran_ahead_s: float = 0.0


def reasons(ways: Mapping[Pair, PathSeen], hosts: Mapping[str, HostSeen]) -> list[str]:
    """Every reason, in the words of the verdict."""
    found = []
    for pair, way in ways.items():
        found += _way(" and ".join(sorted(pair)), way)
    for name, host in hosts.items():
        found += [*_clock(name, host), *_processors(name, host)]
    return found


def clock_bound_s(hosts: Mapping[str, HostSeen]) -> float:
    """How far two figures on the one time line may be out of order, at the worst: in seconds."""
    bounds = sorted((host.clock.bound_s + abs(host.ran_ahead_s) for host in hosts.values() if host.clock), reverse=True)
    return sum(bounds[:2])


def _way(between: str, way: PathSeen) -> list[str]:
    best = best_of_stretches(way.samples)
    if not best:
        return [f"the hosts' network between {between} was never measured: no probe was answered"]
    found = []
    wrong = [one.round_trip_s for one in best if abs(one.round_trip_s / 2 - way.floor_s) > UNDERLAY_TOLERANCE_S / 2]
    if len(wrong) > UNDERLAY_SHARE * len(best):
        worst = max(wrong, key=lambda seconds: abs(seconds - 2 * way.floor_s))
        found.append(
            f"the hosts' network changed: {between} were {worst * 1e3:.1f} ms apart there and back, where "
            f"{2e3 * way.floor_s:.1f} ms are taken off, in {len(wrong) / len(best):.0%} of the time (tolerance "
            f"{UNDERLAY_TOLERANCE_S * 1e3:g} ms)"
        )
    if way.sent and way.lost / way.sent > PROBES_LOST:
        found.append(
            f"the hosts' network between {between} lost {way.lost / way.sent:.1%} of probes "
            f"(tolerance {PROBES_LOST:.0%})"
        )
    return found


def _clock(name: str, host: HostSeen) -> list[str]:
    clock = host.clock
    if clock is None:
        return [f"the clock of {name} was never read"]
    found = []
    if abs(clock.wall_offset_s) > WALL_TOLERANCE_S:
        found.append(
            f"the clock of {name} is {clock.wall_offset_s * 1e3:+.0f} ms and more off the controller's host's "
            f"(tolerance {WALL_TOLERANCE_S * 1e3:g} ms)"
        )
    if clock.drift is not None and abs(clock.drift) - CERTAIN * clock.drift_error > DRIFT_TOLERANCE:
        found.append(
            f"the clock of {name} drifts by {clock.drift * 1e6:+.0f} ppm (tolerance {DRIFT_TOLERANCE * 1e6:g} ppm)"
        )
    if abs(host.ran_ahead_s) > REPLAY_TOLERANCE_S:
        found.append(
            f"the replay of {name} came to be {host.ran_ahead_s * 1e3:+.1f} ms off the others' (tolerance "
            f"{REPLAY_TOLERANCE_S * 1e3:g} ms)"
        )
    return found


def _processors(name: str, host: HostSeen) -> list[str]:
    found = []
    for what, values, most in (
        ("busy", host.cpu, CPU_BUSY),
        ("held up for 100 ms and more", host.late_s, LATE_S),
    ):
        share = sum(value > most for value in values) / len(values) if values else 0.0
        if share > CPU_BUSY_SHARE:
            found.append(
                f"{name}: {STARVED}: it was {what} in {share:.0%} of the seconds (tolerance {CPU_BUSY_SHARE:.0%})"
            )
    return found
