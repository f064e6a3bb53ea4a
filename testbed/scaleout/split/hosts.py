"""The hosts of a split network, held together: each has a process, and all take a step before any takes the next.

A host that is lost ends the whole network; the error names the host.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from ipaddress import IPv4Address
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from testbed.emulation.errors import EmulationError
from testbed.emulation.network.share import OWN
from testbed.emulation.process import await_end
from testbed.scaleout.split.cut_links import HostsNetwork, Pair
from testbed.scaleout.split.host import HostPath, received
from testbed.scaleout.split.probes import (
    PROBE_PORT,
    ClockEstimate,
    ClockSample,
    Prober,
    best_of_stretches,
    estimate,
)

#: The time for a host to connect and to begin, in seconds: what its shell prints may look like the start of an answer.
BEGIN_S = 120.0
#: The time limit of a step, in seconds. The longest builds a worker image, and may load packages over a slow network.
STEP_S = 3600.0
#: The time for a host to remove its part, in seconds; `testbed network clean` finds the rest by its label.
END_S = 30.0


class HostLost(EmulationError):
    """A host no longer answers; `host` is its name."""

    rule = "lost"


class HostProcess:
    """A process on a host: `command` starts `host.serve` there, with its input and output connected to this process."""

    def __init__(self, name: str, command: Sequence[str], *arguments: Any) -> None:
        """Start the process. `arguments` are those of SplitHost after its name.

        Raises:
            EmulationError: The command's program is missing here, or the host can't answer probes.
            HostLost: The host does not begin.
        """
        self.name = name
        requests, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        try:
            with requests, answers:
                self._process = subprocess.Popen(
                    [*command], stdin=requests.fileno(), stdout=answers.fileno(), start_new_session=True
                )
        except FileNotFoundError as error:
            text = f"{name} can't be reached: `{command[0]}` is not installed here; install openssh-client"
            raise EmulationError(text, host=name) from error
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._lost: HostLost | None = None
        self._reader = threading.Thread(target=self._read, name=f"host {name}", daemon=True)
        self._reader.start()
        try:
            self.submit("", name, *arguments).result(BEGIN_S)
        except TimeoutError:
            self.close()
            remedy = "see that a command over SSH prints nothing of its own: `ssh HOST true`"
            raise HostLost(f"{name} did not begin within {BEGIN_S:g} s; {remedy}", host=name) from None
        except OSError as error:
            self.close()
            text = f"{name} can't answer probes at UDP port {PROBE_PORT} of its address: {error.strerror or error}"
            remedy = "see that no other run over several hosts is on there, and that the address is the host's own"
            raise EmulationError(f"{text}; {remedy}", host=name) from error
        except BaseException:
            self.close()
            raise

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the host, such as `part.build`. The result raises the method's error, or HostLost."""
        done: Future[Any] = Future()
        with self._lock:
            if self._lost is not None:
                done.set_exception(self._lost)
                return done
            number = next(self._numbers)
            self._waiting[number] = done
            with contextlib.suppress(OSError):  # the reader reports a lost host
                self._requests.send((number, method, arguments))
        return done

    def lose(self, error: HostLost) -> None:
        """Have all later calls raise this error at once, unless the host was lost before."""
        with self._lock:
            self._lost = self._lost or error

    def close(self) -> None:
        """Have the host remove its part, and wait for the process."""
        self._requests.close()
        await_end(self._process, END_S)
        self._reader.join()

    def _read(self) -> None:
        why = "its process has ended, or the connection to it is cut"
        with self._answers:
            try:
                for number, succeeded, value in received(self._answers):
                    with self._lock:
                        done = self._waiting.pop(number)
                    if succeeded:
                        done.set_result(value)
                    else:
                        done.set_exception(value)
            except Exception as error:  # pickle raises any
                why = f"its answer can't be read ({error!r}); see that it has this version of the program"
        with self._lock:
            self._lost = self._lost or HostLost(f"{self.name} is lost: {why}", host=self.name)
            for done in self._waiting.values():
                done.set_exception(self._lost)
            self._waiting.clear()


class SplitHosts:
    """The hosts of a network, by name. On exit from the context each has removed all that it made.

    Their clocks are measured from here over the hosts' network, from entry on.
    """

    def __init__(
        self,
        hosts: Mapping[str, HostProcess],
        addresses: Mapping[str, IPv4Address],
        token: bytes,
        underlay: Path = OWN,
    ) -> None:
        self.hosts = dict(hosts)
        self._addresses = dict(addresses)
        self._prober = Prober(addresses, token, underlay)
        self._clock_lock = threading.Lock()
        self._clock_samples: dict[str, list[ClockSample]] = {name: [] for name in hosts}

    def __enter__(self) -> SplitHosts:
        self._prober.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._prober.__exit__()
        for host in self.hosts.values():
            with contextlib.suppress(HostLost):
                host.close()

    def call(self, host: str, method: str, *arguments: Any) -> Any:
        """Return the result of a host's method. Raises the method's error, and HostLost after STEP_S."""
        return self._result(host, self.hosts[host].submit(method, *arguments), method, STEP_S)

    def each(
        self, method: str, arguments: Callable[[str], tuple[Any, ...]] = lambda _: (), within_s: float = STEP_S
    ) -> dict[str, Any]:
        """Call a method of every host, by its dotted name, in parallel, and return each host's result, by the host.

        `arguments` returns the arguments for a host. A host that does not answer `within_s` seconds is lost.

        Raises:
            HostLost: A host is lost. Otherwise the first error of a method, with a note that names the host.
        """
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
                raise  # the method itself timed out
            error = HostLost(f"{host} is lost: it did not answer `{method}` within {within_s:g} s", host=host)
            self.hosts[host].lose(error)
            raise error from None

    def merged(self, method: str, arguments: Callable[[str], tuple[Any, ...]] = lambda _: ()) -> dict[str, Any]:
        """Call a method that returns a mapping on every host, as `each` does. Return all their items in one mapping."""
        return {key: value for found in self.each(method, arguments).values() for key, value in found.items()}

    def underlay(self) -> HostsNetwork:
        """Measure the hosts' network between each two hosts. Raises HostLost for a host that another can't reach."""
        names = list(self.hosts)
        after = {name: {one: self._addresses[one] for one in names[at + 1 :]} for at, name in enumerate(names)}
        round_trips: dict[Pair, float] = {}
        mtus: dict[Pair, int] = {}
        for name in names:  # one after another, so that they don't disturb each other
            paths: dict[str, HostPath] = self.call(name, "paths", after[name]) if after[name] else {}
            for other, path in paths.items():
                if path.round_trip_s is None:
                    raise HostLost(f"{other} is lost: it does not answer {name} over the hosts' network", host=other)
                pair = frozenset((name, other))
                round_trips[pair], mtus[pair] = path.round_trip_s, path.mtu
        return HostsNetwork(round_trips, mtus)

    def clock(self, host: str) -> ClockEstimate | None:
        """Return the estimate of a host's clock from all samples so far; None where the host never answered.

        Any thread may call this method. Of each stretch only the sample that an estimate uses is kept: all samples
        would be 72,000 an hour, read each second.
        """
        with self._clock_lock:
            for name, probed in self._prober.seen().items():
                self._clock_samples[name] = best_of_stretches([*self._clock_samples[name], *probed.samples])
            samples = self._clock_samples[host]
        return estimate(samples) if samples else None
