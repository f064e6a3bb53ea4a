"""The hosts of a network that is split, held together: all take a step before any takes the next, and one that is lost
ends it for all, by its name.

What they see is fetched once a second, and put on one time line: this process's monotonic clock, against which each
host's is measured all along (see `clock`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, TimeoutError
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from testbed.emulation.links.links import Observer
from testbed.emulation.network.share import OWN
from testbed.scaleout.clock import ClockEstimate, ClockSample, certain, estimate
from testbed.scaleout.split.host import HostPath
from testbed.scaleout.split.placing import Pair
from testbed.scaleout.split.process import HostHandle, HostLost
from testbed.scaleout.split.verdict import HostSeen, PathSeen
from testbed.scaleout.underlay import HostsNetwork
from testbed.scaleout.underlay_probe import Prober

#: A host looks at its links in some milliseconds; one that is cut off does not answer at all.
SAMPLE_S, UNANSWERED_S = 1.0, 15.0
#: The longest step: a worker image is made once on each host, and may load its packages over a slow network.
STEP_S = 3600.0


class SplitHosts:
    """Hosts by their names. A context manager: left, each has taken away all that it had.

    `clocks` are measured from here over the hosts' network, from entry on.
    """

    def __init__(
        self,
        hosts: Mapping[str, HostHandle],
        addresses: Mapping[str, IPv4Address],
        token: bytes,
        underlay: Path = OWN,
    ) -> None:
        self.hosts = dict(hosts)
        self._addresses = dict(addresses)
        self._prober = Prober(addresses, token, underlay)
        self._clock_samples: dict[str, list[ClockSample]] = {name: [] for name in hosts}

    def __enter__(self) -> SplitHosts:
        self._prober.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._prober.__exit__()
        for host in self.hosts.values():
            with contextlib.suppress(HostLost):
                host.close()

    def call(self, host: str, method: str, *arguments: Any, within_s: float = STEP_S) -> Any:
        """What a host's method returns. Raises what that does; HostLost also where it does not answer in time."""
        return self._result(host, self.hosts[host].submit(method, *arguments), method, within_s)

    def each(
        self, method: str, arguments: Callable[[str], tuple[Any, ...]] = lambda _: (), within_s: float = STEP_S
    ) -> dict[str, Any]:
        """The same of every host, side by side; all have ended when this returns or raises the first error."""
        running = {name: host.submit(method, *arguments(name)) for name, host in self.hosts.items()}
        found, errors = {}, []
        for name, future in running.items():
            try:
                found[name] = self._result(name, future, method, within_s)
            except Exception as error:
                if not isinstance(error, HostLost):
                    error.add_note(f"on {name}")
                errors.append(error)
        if errors:
            raise next((error for error in errors if isinstance(error, HostLost)), errors[0])
        return found

    def _result(self, host: str, future: Future[Any], method: str, within_s: float) -> Any:
        try:
            return future.result(within_s)
        except TimeoutError:
            if future.done():
                raise  # of the method itself
            raise HostLost(
                f"{host} is lost: it did not answer `{method}` within {within_s:g} s", rule="lost", host=host
            ) from None

    def underlay(self) -> HostsNetwork:
        """The hosts' network as it is now, between every two of them. HostLost for one that another does not reach."""
        names = list(self.hosts)
        after = {name: {one: self._addresses[one] for one in names[at + 1 :]} for at, name in enumerate(names)}
        ways: dict[Pair, HostPath] = {}
        for name in names:  # one after another: they would be in each other's way
            for other, way in (self.call(name, "paths", after[name]) if after[name] else {}).items():
                ways[frozenset((name, other))] = way
        for pair, way in ways.items():
            if way.round_trip_s is None:
                a, b = sorted(pair)
                raise HostLost(f"{b} is lost: it does not answer {a} over the hosts' network", rule="lost", host=b)
        round_trips = {pair: way.round_trip_s for pair, way in ways.items() if way.round_trip_s is not None}
        return HostsNetwork(round_trips, {pair: way.mtu for pair, way in ways.items()})

    def clock(self, host: str) -> ClockEstimate | None:
        """A host's clock, by all that was seen of it so far; None where it never answered."""
        for name, probed in self._prober.seen().items():
            self._clock_samples[name] += probed.samples
        samples = self._clock_samples[host]
        return estimate(samples) if samples else None


class HostSamples:
    """What hosts see, fetched once a second from `start` on, until `stop`. Any thread may ask."""

    def __init__(self, hosts: SplitHosts, floors: Mapping[Pair, float], observer: Observer) -> None:
        """`observer` is told of states put in force, at moments of this process's clock."""
        self._hosts = hosts
        self._floors = floors
        self._observer = observer
        self._lock = threading.Lock()
        self._last: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, list[dict[str, Any]]] = {name: [] for name in hosts.hosts}
        self._ran_ahead_s: dict[str, float] = {}
        self._begun: dict[str, ClockEstimate] = {}
        self._over = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="host samples", daemon=True)

    def start(self) -> None:
        """Fetch a first sample, and go on."""
        self._fetch()
        self._thread.start()

    def stop(self) -> None:
        """End; what was seen stays."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def begun(self, clocks: Mapping[str, ClockEstimate]) -> None:
        """Replay has begun on all hosts, by these estimates of their clocks."""
        with self._lock:
            self._begun = dict(clocks)
            for samples in self._seen.values():  # what was before is not the run's
                samples.clear()

    @property
    def failure(self) -> str | None:
        """Why there is no more to see: a host that is lost, or whose part has broken."""
        return self._failure

    def merged(self, table: str) -> dict[str, Any]:
        """A table of the last samples, `bytes` or `busy_s`, of all hosts."""
        with self._lock:
            return {name: value for sample in self._last.values() for name, value in sample[table].items()}

    def host_seen(self) -> dict[str, HostSeen]:
        """What was seen of each host since replay began."""
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
        """What probes have seen between hosts since replay began."""
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
            self._failure = str(error)

    def _fetch(self) -> None:
        samples = self._hosts.each("sample", within_s=UNANSWERED_S)
        for name, sample in samples.items():
            clock = self._hosts.clock(name)
            if sample["broken"]:
                self._failure = f"{name}: {sample['broken']}"
            with self._lock:
                self._last[name] = sample
                self._seen[name].append(sample)
                if clock is not None and name in self._begun:
                    ran_s = clock.at_s + clock.offset_s - self._begun[name].theirs(clock.at_s)
                    ran_s = certain(ran_s, clock.offset_bound_s + self._begun[name].offset_bound_s)
                    self._ran_ahead_s[name] = max(self._ran_ahead_s.get(name, 0.0), ran_s, key=abs)
            for at_s, link, state in sample["states"]:
                self._observer(clock.ours(at_s) if clock is not None else time.monotonic(), link, state)
