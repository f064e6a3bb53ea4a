"""A command on a network that is up, and stays up: `testbed launch` without a topology.

The process that keeps the network up replays its traces and carries out people's requests, so a run of this kind
records what that process reports.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from testbed.api.client import RequestFailed, RequestRefused
from testbed.api.requests import RecordLaunch
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import images_of
from testbed.emulation.daemon import client
from testbed.emulation.links.probe import LinkFidelity
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.guards import UndoStack
from testbed.run.manifest import Manifest
from testbed.run.programs.experiment_programs import ExperimentPrograms, ProgramNetwork, check_command
from testbed.run.run import Execution
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome
from testbed.run.watchdog import EngineWatch, check_machine
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology
from testbed.spec.units import count
from testbed.telemetry.host import CpuMeter

#: The most characters of a command that the network's events show.
MOST_SHOWN = 200

#: What the verdict can't judge, in addition to what it can't judge in any run whose command trains.
NOT_JUDGED = "rates and round trips of the links, which are measured on a new network only, while they are idle"

#: The seconds between two records of the network's traffic.
PERIOD_S = 1.0

#: The seconds after which the newest rows, of which the network reports how late they were, are of the launch: 600 rows
#: of 100 ms.
LATE_S = 60.0

T = TypeVar("T")


def standing_experiment(network: str, train: Mapping[str, Any]) -> Experiment:
    """Return the experiment in which a program trains on the workers of a network that is up.

    `train` has the fields of a ProgramSection.

    Raises:
        SpecError: A field is wrong, or the network's file is gone, wrong, or that of another network by now.
        RequestFailed: The network does not answer.
    """
    status = client(network).status()
    topology = Topology.load(Path(status["file"]))
    sites = {name: host["site"] for name, host in status["hosts"].items() if host["kind"] == "worker"}
    for name in sorted(sites.keys() - {worker.name for worker in topology.workers}):  # by `testbed worker add`
        if sites[name] in topology.sites:
            topology = topology.with_worker(sites[name])
    for field, known, up in (
        ("sites", {worker.name for worker in topology.workers}, set(sites)),
        ("links", set(topology.links), set(status["links"])),
    ):
        if unlike := sorted(known ^ up):
            rule = f"the file has changed since the network {network} came up: only one of the two has {unlike[0]}"
            remedy = f"the {field} as they were, or `testbed network swap {topology.file} --name {network}` first"
            raise SpecError(topology.file, [Fault(field, rule, remedy)])
    return Experiment.of_program(topology, {**train, "workers": train.get("workers") or list(sites)}, network)


class Recorder:
    """Records a network that is up, from a thread between `start` and `stop`: its links' states, events and traffic.

    `append` is called with a file's name and a record for it: `links.jsonl`, `events.jsonl` and `traffic.jsonl`.
    """

    def __init__(self, network: str, append: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._network = client(network)
        self._append = append
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._cpu = CpuMeter()
        self._count: int | None = None
        self._newest: Mapping[str, Any] | None = None  # event of the network at the last look
        self._links: set[str] = set()  # of the network at the last look
        self._failure: Exception | None = None
        #: The greatest lateness that the network reported since the start, in ms; None before the first one.
        self.late_ms: float | None = None
        self._began_s = time.monotonic()

    def status(self) -> dict[str, Any]:
        """Return the network's status.

        Raises:
            RunFailed: The network does not answer, or its emulation has failed.
        """
        status = self._asked(self._network.status)
        if status["failure"]:
            raise RunFailed(f"the emulation broke: {status['failure']}")
        return status

    def tell(self, kind: str, target: str) -> None:
        """Add an event of the launch to those of the network, which its page shows."""
        with suppress(RequestFailed, RequestRefused):  # the network is going down, or an earlier version keeps it up
            self._network.do(RecordLaunch(kind=kind, target=target))

    def start(self) -> None:
        """Record the present state, and start the thread. Earlier events of the network are not recorded."""
        self._new_events()
        self._record()
        self._thread.start()

    def stop(self) -> None:
        """Record a last time, and end the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the recording early, if one did; it is RunFailed if the network has ended."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PERIOD_S):
                self._record()
            self._record(last=True)
        except Exception as error:
            self._failure = error

    def _record(self, last: bool = False) -> None:
        status = self.status()
        # Rows from before the launch do not count, unless the launch ends before LATE_S.
        is_own = last or time.monotonic() >= self._began_s + LATE_S
        if is_own and (late_ms := status["replay"]["late_ms_p99"]) is not None:
            self.late_ms = max(late_ms, self.late_ms or 0.0)
        history = self._asked(lambda: self._network.history(self._count))
        if self._count is not None and history["count"] - self._count > len(history["states"]):
            raise RunFailed("links changed more often than can be recorded; write longer steps in their traces")
        self._count = history["count"]
        for state in history["states"]:
            if state["link"] in status["links"]:
                self._append("links.jsonl", state)
        for link in self._links - status["links"].keys():
            self._append("links.jsonl", {"at_s": time.time(), "link": link, "removed": True})
        self._links = set(status["links"])
        for event in self._new_events():
            self._append("events.jsonl", event)
        sample = {"at_s": time.time(), "clock_s": time.monotonic(), "bytes": arrived(status), "cpu": self._cpu.read()}
        self._append("traffic.jsonl", sample)

    def _new_events(self) -> list[dict[str, Any]]:
        """Return the network's events after the newest of the last call.

        Their times do not tell which events are new, since the clock may be set back.
        """
        events = self._asked(self._network.events)
        known = max((number for number, event in enumerate(events, start=1) if event == self._newest), default=0)
        self._newest = events[-1] if events else None
        return events[known:]

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except RequestFailed as error:
            raise RunFailed(str(error)) from error


def arrived(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes that the kernel counted at the end of each link, of a network with this status."""
    from testbed.emulation.network.node import arrived_bytes  # needs Mininet

    routers = {host["site"]: host["pid"] for host in status["hosts"].values() if host["kind"] == "router"}
    return arrived_bytes(routers, status["links"])


class StandingRun(Execution):
    """The execution of an experiment whose command trains, on `network`, which is up and has the same topology.

    Raises:
        SpecError: One command would make each worker train alone.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display, network: str) -> None:
        super().__init__(experiment, directory, display)
        check_command(experiment)
        self._recorder = Recorder(network, directory.append)

    def execute(self, strict: bool = False) -> Outcome:
        """Run the command until it has ended on all its workers, and return the outcome. `strict` changes nothing here.

        All processes of the command have ended then, also after an exception.

        Raises:
            RunFailed: The command failed on a worker, the network went down, or the disk is full.
            SpecError: The command can't be run.
            EngineError: The command needs containers and no engine answers.
        """
        experiment, directory, recorder = self.experiment, self.directory, self._recorder
        program = experiment.spec.program
        assert program is not None
        began = recorder.status()
        docker_client = None if program.on_host else engine.connect()
        manifest = Manifest(
            directory,
            experiment,
            network=began,
            backend=began["backend"],
            switch=began["switch"],
            transport=began["transport"],
            docker_client=None if docker_client is None else engine.CLIENT_RECORD,
            images=[] if docker_client is None else images_of(docker_client, began["name"]),
        )
        programs = ExperimentPrograms(
            experiment, ProgramNetwork.standing(began), docker_client, directory, self.display
        )
        commands = program.commands(experiment.topology)
        words = shlex.join(next(iter(commands.values())))[:MOST_SHOWN]
        started = time.time()
        manifest.add(training_started_s=started)
        with UndoStack() as stack:
            recorder.tell("launch", f"{directory.id} on {count(len(commands), 'worker')}: {words}")
            stack.callback(recorder.tell, "launch ended", directory.id)
            stack.callback(lambda: manifest.add(by_hand=self._by_hand()))
            stack.callback(recorder.stop)
            recorder.start()
            stack.callback(lambda: manifest.add(**programs.record))
            stack.callback(programs.end)
            programs.start()
            watch = None if docker_client is None else stack.enter_context(EngineWatch())
            programs.wait(partial(self._look, watch))
            ended = time.time()
        manifest.add(ended_s=ended, membership_events=programs.status["membership_events"])
        programs.check()
        recorder.check()
        return Outcome(
            fidelity={name: LinkFidelity(None, None) for name in began["links"]},
            backend=began["backend"],
            training_started_s=started,
            training_ended_s=ended,
            lateness=_lateness(began["links"], recorder.late_ms),
            status=programs.status,
            idle=programs.idle,
            by_hand=_changed_before(began),
            not_judged=[NOT_JUDGED],
            network_swaps=_network_swaps(self.directory.read("events.jsonl")),
        )

    def _look(self, engine_watch: EngineWatch | None) -> None:
        self._recorder.check()
        check_machine([self.directory.path], engine_watch)

    def _by_hand(self) -> list[dict[str, Any]]:
        return [event for event in self.directory.read("events.jsonl") if event.get("by") == "hand"]


def _network_swaps(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the swaps of the whole network among recorded events, as an `Outcome` has them."""
    return [
        {"kind": "network", "target": one["target"], "file": None, "requested_s": one["at_s"], "active_s": one["at_s"]}
        for one in events
        if one["kind"] == "swap"
    ]


def _lateness(links: Mapping[str, Mapping[str, Any]], late_ms: float | None) -> dict[str, list[float]]:
    """Return the lateness in seconds of each link with a trace. Other links replay nothing.

    Args:
        links: The links of the network's status.
        late_ms: The greatest lateness that the network reported after LATE_S and at the end, each time of the newest
            rows of the latest link; None if no trace has changed a link yet.
    """
    late = [] if late_ms is None else [late_ms / 1e3]
    return {name: late for name, link in links.items() if link["replayed"]}


def _changed_before(status: Mapping[str, Any]) -> list[str]:
    """Return the changes by people that are in force on a network with this status, in words."""
    links = status["links"]
    changed = [f"{name} before the command began" for name, link in links.items() if _is_changed(link)]
    if status["replay"]["paused"] and any(link["replayed"] for link in links.values()):
        changed.append("the replay was paused before the command began")
    return changed


def _is_changed(link: Mapping[str, Any]) -> bool:
    """Return whether a link has other values than its file or trace says, or is down."""
    return not link["up"] or any(value is not None for value in link["changed"].values())
