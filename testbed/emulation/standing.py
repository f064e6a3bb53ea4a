"""A network that stays up until it is taken down: workers' containers that wait, and traces that replay meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from docker.errors import DockerException

from testbed.emulation import cleanup, engine, label
from testbed.emulation.containers import ContainerDied, ContainerRequest, Fleet
from testbed.emulation.difference import Difference
from testbed.emulation.image import ensure_worker_image
from testbed.emulation.network import Network
from testbed.emulation.replay import Replay
from testbed.emulation.shaping import LinkCounters, open_shaper
from testbed.link import LinkState
from testbed.spec.experiment import LinkChange
from testbed.spec.topology import Topology, Worker

Backend = Literal["auto", "netem", "userspace"]

#: A step of the work: its title, told while it goes on.
Step = Callable[[str], AbstractContextManager[None]]

#: A worker's first process. Nothing runs in the container but what is put there.
IDLE = ("python3", "-ISc", "import signal; signal.pause()")

#: How many of a link's last replay ticks the lateness is of: a minute at 100 ms. A network may stay up for weeks.
LAST_TICKS = 600


class StandingNetwork:
    """A context manager: up on entry, and nothing left of it on leaving."""

    def __init__(self, name: str, topology: Topology, backend: Backend, step: Step) -> None:
        self.name = name
        self._topology = topology
        self._backend: Backend = backend
        self._step = step

    def __enter__(self) -> StandingNetwork:
        """Raises EngineError, ImageError, ShapingError, SwitchError when this machine can't.

        FileExistsError when it is up.
        """
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        topology = self._topology
        with self._step("Docker engine and worker image"):
            client = engine.connect()
            image = ensure_worker_image(client, lambda _: None)
        if label.owner(self.name) is None:
            cleanup.clean(client, self.name)  # what a killed one left would be in the way
        self.folder = stack.enter_context(label.labelled(self.name))
        stack.callback(label.kill_processes, self.name)  # what was started in its hosts ends with it
        with self._step("shaping backend, probed"):
            shaper = stack.enter_context(open_shaper(self._backend))
        with self._step(f"{len(topology.sites)} sites, {len(topology.links)} directed links, {shaper.name} shaping"):
            self.network = Network(self.name, topology, shaper, lambda *_: None)
            stack.callback(self.network.stop)
            self.network.build()
        with self._step(f"{len(topology.workers)} workers in containers"):
            control = self.folder / "control"
            control.mkdir()
            self._fleet = stack.enter_context(Fleet(client, self.name, image, control))
            self.network.join(self._start(topology.workers))
        self._replay = Replay(self.network.links_in_force)
        stack.callback(self._replay.stop)
        self._replay.start(topology.links.values())

    def _start(self, workers: Iterable[Worker]) -> Mapping[str, int]:
        """Worker → pid of its container's first process."""
        try:
            return self._fleet.start(ContainerRequest(worker, IDLE[1:], {}, entrypoint=IDLE[:1]) for worker in workers)
        except (ContainerDied, DockerException) as error:
            raise engine.EngineError(f"a worker's container does not start: {error}") from error

    # Asking -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What it is now: hosts with addresses, links with the state in force and counters. Times in seconds."""
        network, topology = self.network, self.network.topology
        counters = network.shaper.counters()
        states = network.links_in_force.states()
        replayed = {name for name, link in topology.links.items() if link.trace is not None}
        return {
            "name": self.name,
            "topology": topology.name,
            "file": str(topology.file),
            "backend": network.shaper.name,
            "switch": network.switch,
            "transport": network.transport.record(),
            "pid": os.getpid(),
            "failure": network.shaper.failure() or (str(self._replay.failure) if self._replay.failure else None),
            "replay": {
                "elapsed_s": round(self._replay.elapsed_s, 3),
                "links": len(replayed),
                "late_ms_p99": _p99_ms(self.network.links_in_force.lateness(LAST_TICKS)),
            },
            "hosts": self._hosts(topology),
            "links": {
                name: {**state_values(state), **_counts(counters[name]), "replayed": name in replayed}
                for name, state in states.items()
            },
        }

    def _hosts(self, topology: Topology) -> dict[str, dict[str, Any]]:
        network = self.network
        workers = {
            worker.name: _host("worker", worker.site, network.address(worker), network.container(worker.name).pid)
            for worker in topology.workers
        }
        routers = {
            f"{site}-r": _host("router", site, str(network.addressing.router(site).ip), network.router(site).pid)
            for site in topology.sites
        }
        return workers | routers

    # Changing -----------------------------------------------------------------------------------------------------

    def change(self, change: LinkChange) -> LinkState:
        """New values for a directed link, in place; the state in force then. KeyError: no such link."""
        self.network.links_in_force.change(change)
        return self.network.links_in_force.states()[change.link]

    def take(self, link: str, up: bool) -> LinkState:
        """Take the physical pair of a link down or up; routes follow. KeyError: no such link."""
        if link not in self.network.topology.links:
            raise KeyError(f"no link {link} is up; there are {', '.join(sorted(self.network.topology.links))}")
        source, target = link.split("->")
        self.network.take(source, target, up)
        return self.network.links_in_force.states()[link]

    def swap(self, topology: Topology) -> dict[str, Any]:
        """Become another network by difference: what stays the same keeps its connections.

        A worker whose container's limits change gets another container. Raises what went wrong; then the network is
        as it was, but for its changed workers' connections. `lost_packets` are those that unchanged
        links dropped from a full queue meanwhile, `unroutable_packets` those for which a router had no route.
        """
        began = time.monotonic()
        old = self.network.topology
        difference = Difference.between(old, topology)
        unchanged = old.links.keys() - set(difference.links.removed) - set(difference.links.changed)
        staying = [site for site in old.sites if site in topology.sites]
        drops, unroutable = self._queue_drops(unchanged), self._unroutable(staying)

        new = {*difference.workers.added, *difference.workers.changed}
        with self._fleet.replacing(difference.workers.changed):
            pids = self._start(worker for worker in topology.workers if worker.name in new)
            self.network.swap(topology, pids=pids)
        self._replay.follow(topology.links.values())
        self._fleet.drop(difference.workers.removed)
        return {
            **asdict(difference),
            "unchanged_links": len(unchanged),
            "seconds": time.monotonic() - began,
            "lost_packets": self._queue_drops(unchanged) - drops,
            "unroutable_packets": self._unroutable(staying) - unroutable,
        }

    def _queue_drops(self, links: Iterable[str]) -> int:
        counters = self.network.shaper.counters()
        return sum(counters[name].dropped_queue for name in links)

    def _unroutable(self, sites: Iterable[str]) -> int:
        return sum(self.network.router(site).unroutable_packets() for site in sites)


def state_values(state: LinkState) -> dict[str, Any]:
    """A state as JSON has it, its queue as the bytes that may wait at this rate and delay."""
    return {
        "rate_bps": state.rate_bps,
        "delay_s": state.delay_s,
        "jitter_s": state.jitter_s,
        "loss": state.loss,
        "bursts": asdict(state.bursts) if state.bursts else None,
        "reorder": state.reorder,
        "up": state.up,
        "queue_bytes": state.queue_bytes,
    }


def _host(kind: str, site: str, address: str, pid: int) -> dict[str, Any]:
    """`pid` is what holds its namespace: of a worker, its container's first process; of a router, a thread of ours."""
    return {"kind": kind, "site": site, "address": address, "pid": pid, "running": Path(f"/proc/{pid}").exists()}


def _counts(counters: LinkCounters) -> dict[str, int]:
    return {
        "packets": counters.packets,
        "bytes": counters.bytes,
        "dropped_queue": counters.dropped_queue,
        "dropped_loss": counters.dropped_loss,
        "backlog_bytes": counters.backlog_bytes,
    }


def _p99_ms(lateness: Mapping[str, Iterable[float]]) -> float | None:
    """Over all ticks of all links that are remembered; None where nothing is replayed."""
    late = sorted(seconds for ticks in lateness.values() for seconds in ticks)
    return round(late[int(0.99 * (len(late) - 1))] * 1e3, 3) if late else None
