"""The hosts' part in a run's verdict: their measurements during the run, and which of these make the run suspect.

Samples are fetched from the hosts once a second, and put on one time line: this process's monotonic clock, against
which each host's clock is measured throughout. A figure that was never measured is a reason for `suspect` too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.emulation.links.links import Observer
from testbed.run.conclusion.verdict import CPU_BUSY, CPU_BUSY_SHARE, STARVED
from testbed.scaleout.split.cut_links import Pair
from testbed.scaleout.split.hosts import SplitHosts
from testbed.scaleout.split.probes import ClockEstimate, ClockSample, Probed, best_of_stretches, certain

#: A host looks at its links in some milliseconds; a host that does not answer for 15 s is cut off.
SAMPLE_S, UNANSWERED_S = 1.0, 15.0

#: The tolerance of a cut link's round trip for changes of the hosts' network, in seconds: as large as that of any link
#: under `userspace`.
UNDERLAY_TOLERANCE_S = 1e-3
#: The share of two-second stretches beyond that tolerance, since something else may use the hosts' network …
UNDERLAY_SHARE = 0.10
#: … and the share of probes that may be lost: links that declare no loss lose what the hosts' network loses.
PROBES_LOST = 0.01

#: The tolerance between wall clocks in seconds. Members stamp their events by wall clocks, and rounds are compared to
#: hundredths of a second. Hosts under NTP are within a millisecond on one network, within ten over the internet.
WALL_TOLERANCE_S = 10e-3
#: How far one host's replay may run ahead of another's, in seconds: a tick that late is not on time.
REPLAY_TOLERANCE_S = 5e-3
#: The tolerated relative drift. A crystal is within 50 ppm, and a clock that is being slewed hides nothing below this.
DRIFT_TOLERANCE = 100e-6
#: The standard errors by which an estimated drift may be off.
CERTAIN = 3.0

#: A process that wakes up this many seconds late had no processor meanwhile.
LATE_S = 0.1


# What was seen --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathSeen:
    """The probes between two hosts during a run: those answered, and the number of those lost."""

    samples: Sequence[ClockSample]
    sent: int
    #: The number of probes without an answer.
    lost: int
    #: The seconds that were taken off one way of each link between the hosts.
    floor_s: float


@dataclass(frozen=True)
class HostSeen:
    """A host during a run: its load and lateness in each sample, and how far its clock and its replay were off."""

    #: The processors' busy share.
    cpu: Sequence[float]
    #: By how many seconds the host's process was late to wake up, at the worst.
    late_s: Sequence[float]
    #: The clock against the holder's; None where it was never read.
    clock: ClockEstimate | None
    #: How far the host's replay has come to run ahead of the holder's time line for certain; negative when behind.
    ran_ahead_s: float = 0.0


class HostSamples:
    """Fetches the hosts' samples once a second, from `start` to `stop`. Any thread may ask."""

    def __init__(self, hosts: SplitHosts, floors: Mapping[Pair, float], observer: Observer) -> None:
        """Prepare to sample; `observer` is called with each state that a link gets, timed by this process's clock."""
        self._hosts = hosts
        self._floors = floors
        self._observer = observer
        self._lock = threading.Lock()
        self._last: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, list[dict[str, Any]]] = {name: [] for name in hosts.hosts}
        self._ran_ahead_s: dict[str, float] = {}
        self._begun: dict[str, ClockEstimate] = {}
        self._over = threading.Event()
        #: The reason why no more samples come, a lost host or a broken part; None while they come.
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="host samples", daemon=True)

    def start(self) -> None:
        """Fetch a first sample, then one a second."""
        self._fetch()
        self._thread.start()

    def stop(self) -> None:
        """Stop fetching; the samples so far stay."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def begun(self, clocks: Mapping[str, ClockEstimate]) -> None:
        """Record that replay has begun on all hosts, by these estimates of their clocks; forget earlier samples."""
        with self._lock:
            self._begun = dict(clocks)
            for samples in self._seen.values():
                samples.clear()

    def merged(self, table: str) -> dict[str, Any]:
        """Return a table of the newest samples, such as `bytes` or `counters`, merged over all hosts."""
        with self._lock:
            return {name: value for sample in self._last.values() for name, value in sample[table].items()}

    def host_seen(self) -> dict[str, HostSeen]:
        """Return the samples of each host's load, lateness and clock since replay began, by the host's name."""
        with self._lock:
            seen = {name: list(samples) for name, samples in self._seen.items()}
        return {
            name: HostSeen(
                cpu=[one["cpu"] for one in samples],
                late_s=[one["late_s"] for one in samples],
                clock=self._hosts.clock(name),
                ran_ahead_s=self._ran_ahead_s.get(name, 0.0),
            )
            for name, samples in seen.items()
        }

    def paths_seen(self, pairs: Iterable[Pair]) -> dict[Pair, PathSeen]:
        """Return the probes between these pairs of hosts since replay began."""
        found = {}
        with self._lock:
            for pair in pairs:
                first, other = sorted(pair)
                probed = [one["probed"][other] for one in self._seen[first] if other in one["probed"]]
                found[pair] = PathSeen(
                    samples=[sample for one in probed for sample in one.samples],
                    sent=sum(one.sent for one in probed),
                    lost=sum(one.lost for one in probed),
                    floor_s=self._floors[pair],
                )
        return found

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.is_set():
                due = max(due + SAMPLE_S, time.monotonic())
                self._over.wait(max(0.0, due - time.monotonic()))
                self._fetch()
        except Exception as error:
            self.failure = str(error) or repr(error)

    def _fetch(self) -> None:
        samples = self._hosts.each("sample", within_s=UNANSWERED_S)
        for name, sample in samples.items():
            clock = self._hosts.clock(name)
            if sample["broken"]:
                self.failure = f"{name}: {sample['broken']}"
            with self._lock:
                self._last[name] = sample
                self._seen[name].append(_kept(sample))
                if clock is not None and name in self._begun:
                    ran_s = clock.at_s + clock.offset_s - self._begun[name].theirs(clock.at_s)
                    ran_s = certain(ran_s, clock.offset_bound_s + self._begun[name].offset_bound_s)
                    self._ran_ahead_s[name] = max(self._ran_ahead_s.get(name, 0.0), ran_s, key=abs)
            for at_s, link, state in sample["states"]:
                self._observer(clock.ours(at_s) if clock is not None else time.monotonic(), link, state)


def _kept(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a host's sample that the verdict needs to the end; the rest would be megabytes an hour."""
    probed: dict[str, Probed] = sample["probed"]
    best = {other: replace(one, samples=tuple(best_of_stretches(one.samples))) for other, one in probed.items()}
    return {"cpu": sample["cpu"], "late_s": sample["late_s"], "probed": best}


# What makes a run suspect, pure ---------------------------------------------------------------------------------------


def reasons(paths: Mapping[Pair, PathSeen], hosts: Mapping[str, HostSeen]) -> list[str]:
    """Return every reason for `suspect`, in the words of the verdict."""
    found = []
    for pair, path in paths.items():
        found += _path_reasons(" and ".join(sorted(pair)), path)
    for name, host in hosts.items():
        found += [*_clock_reasons(name, host), *_processor_reasons(name, host)]
    return found


def clock_bound_s(hosts: Mapping[str, HostSeen]) -> float:
    """Return how far two figures on the time line may be out of order at the worst, in seconds."""
    bounds = sorted((host.clock.bound_s + abs(host.ran_ahead_s) for host in hosts.values() if host.clock), reverse=True)
    return sum(bounds[:2])


def _path_reasons(between: str, path: PathSeen) -> list[str]:
    best = best_of_stretches(path.samples)
    if not best:
        return [f"the hosts' network between {between} was never measured: no probe was answered"]
    found = []
    wrong = [one.round_trip_s for one in best if abs(one.round_trip_s / 2 - path.floor_s) > UNDERLAY_TOLERANCE_S / 2]
    if len(wrong) > UNDERLAY_SHARE * len(best):
        worst = max(wrong, key=lambda seconds: abs(seconds - 2 * path.floor_s))
        found.append(
            f"the hosts' network changed: {between} were {worst * 1e3:.1f} ms apart there and back, where "
            f"{2e3 * path.floor_s:.1f} ms are taken off, in {len(wrong) / len(best):.0%} of the time (tolerance "
            f"{UNDERLAY_TOLERANCE_S * 1e3:g} ms)"
        )
    if path.sent and path.lost / path.sent > PROBES_LOST:
        found.append(
            f"the hosts' network between {between} lost {path.lost / path.sent:.1%} of probes "
            f"(tolerance {PROBES_LOST:.0%})"
        )
    return found


def _clock_reasons(name: str, host: HostSeen) -> list[str]:
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
            f"the replay of {name} was {host.ran_ahead_s * 1e3:+.1f} ms off the others' (tolerance "
            f"{REPLAY_TOLERANCE_S * 1e3:g} ms)"
        )
    return found


def _processor_reasons(name: str, host: HostSeen) -> list[str]:
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
