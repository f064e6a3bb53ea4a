"""The controller of a command's processes that use the backend `wan` or a scheme: it plans their large all-reduces."""

from __future__ import annotations

import fcntl
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.controller.client import ControllerError
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.controller.server.member_server import SOCKET
from testbed.emulation.network.routing import Routes
from testbed.launch import BadCommand
from testbed.launch.ranks import Rank
from testbed.link import LinkState
from testbed.plan import PLAIN_CODEC, bytes_through
from testbed.protocol import Job
from testbed.run.controller_process import ADDRESS, ControllerFailed, ControllerProcess
from testbed.run.view import declared_states, view_of
from testbed.spec.topology import Topology

#: The size of the all-reduce that the first plan is made for: DistributedDataParallel's default bucket.
BUCKET_BYTES = 25 * 1024 * 1024
#: The number of rounds: the programs decide how many there are.
ENDLESS = 1_000_000_000
#: The longest wait in seconds for a member in a round, as in process groups of PyTorch: one may evaluate its model for
#: minutes, while the others wait. The end of a program is noticed at once.
ROUND_TIMEOUT_S = 1800.0
POLICY = "auto"

#: Rounds without training: a scheme around a script first compares the members' parameters (`check_alike`).
COMPARISONS = {"scheme": 1, "wan": 0}

#: The step that would have made a process join the controller.
NOT_DONE = {"wan": "reduced a large tensor", "scheme": "stepped a torch optimizer"}
#: Why processes that joined made no round.
NO_ROUND = {
    "wan": "no reduced tensor was large enough for a plan",
    "scheme": "the script ended before the first; write instead: fewer steps a round, or more steps",
}


class ProgramController:
    """The controller of a command's processes. A context manager: it runs while the context is open.

    Its records are in the run's directory, as those of an experiment's own training are: rounds, plans, decisions.

    Attributes:
        client: Sends requests to the controller while it runs.
        status: The controller's whole last status, which `__exit__` reads.
        outcome: The part of `status` for the summary: the members that joined, the last round, and the plan swaps.

    Args:
        topology: The network's topology.
        states: The links' states, or None for the declared ones.
        ranks: The processes; their workers are the members, each with one process.
        folder: The network's folder, for the sockets.
        directory: The run's directory.
        variables: The processes' environment variables: TESTBED_BACKEND or TESTBED_SCHEME, with its setting.
        codec: The codec of every plan.
        elapsed_s: The seconds for which traces have been replayed. Routes lead into a link whose trace is over.
    """

    def __init__(
        self,
        topology: Topology,
        states: Mapping[str, LinkState] | None,
        ranks: Sequence[Rank],
        folder: Path,
        directory: Path,
        variables: Mapping[str, str],
        codec: str = PLAIN_CODEC,
        elapsed_s: float = 0.0,
    ) -> None:
        members = tuple(rank.worker for rank in ranks)
        states = declared_states(topology) if states is None else states
        round_bytes = bytes_through(codec, BUCKET_BYTES, PLAIN_CODEC)
        down = {name for name, state in states.items() if not state.up and not _is_over(topology, name, elapsed_s)}
        routes = Routes.over(topology, down)
        whole = view_of(topology, routes, states, round_bytes, time.time(), "measured")
        view = whole.among(members)
        spec = ControllerSpec(
            members=view.names,
            secret=secrets.token_hex(32),
            jobs={name: Job(ENDLESS, round_timeout_s=ROUND_TIMEOUT_S) for name in view.names},
            planning=PlanningSpec(view=view, policy=POLICY, codec=codec, measured_bytes=True),
        )
        self._folder = folder
        self.name = "wan" if "TESTBED_BACKEND" in variables else "scheme"
        self._variables = variables
        (setting,) = variables.values()
        self._asked = f"{'backend' if self.name == 'wan' else 'scheme'} {setting}"
        self._logs = directory / "logs"
        self._controller = ControllerProcess(spec, folder, directory)
        self.client = self._controller.client
        self._stack = ExitStack()
        self.status: dict[str, Any] = {"swaps": [], "membership_events": []}
        self.outcome: dict[str, Any] = {"state": "not started", "joined": [], "round": None}

    def __enter__(self) -> ProgramController:
        with ExitStack() as stack:
            lock = stack.enter_context((self._folder / "wan.lock").open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadCommand(
                    "another launch on this network uses its controller\n"
                    "    write instead: the command without --backend or --scheme, or wait until that launch has ended"
                ) from None
            self._logs.mkdir(exist_ok=True)
            stack.callback((self._folder / "controller.json").unlink, missing_ok=True)  # it has the secret
            stack.enter_context(self._controller)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:  # closed also after an interrupt of the request
            try:
                status = self.status = self.client.status()
                known = ("state", "failure", "joined", "round", "epoch", "swaps")
                self.outcome = {name: status[name] for name in known}
            except ControllerError as error:
                why = str(error)
                try:
                    self.check()
                except ControllerFailed as gone:
                    why = str(gone)
                self.outcome |= {"state": "failed", "failure": why}

    def check(self) -> None:
        """Raise ControllerFailed when the controller's process has ended."""
        self._controller.check()

    def with_environment(self, rank: Rank, on_host: bool) -> Rank:
        """Return a process, in a container or on this machine, with the controller's address and the member's name."""
        address = f"unix:{self._folder / 'control' / rank.worker / SOCKET}" if on_host else ADDRESS
        own = {**self._variables, "TESTBED_CONTROLLER": address, "TESTBED_MEMBER": rank.worker}
        return replace(rank, environment=rank.environment | own)

    @property
    def idle(self) -> str:
        """The reason why no round followed the controller's plans; empty if one did, or if the controller failed."""
        if self.outcome["state"] == "failed":
            return ""
        if not self.outcome["joined"]:
            why = f"none {NOT_DONE[self.name]}, or the image lacks the package `testbed`"
            return f"{self._asked}: no process joined the controller: {why}"
        if (self.outcome["round"] or 0) <= COMPARISONS[self.name]:
            return f"{self._asked}: 0 rounds, so nothing was synchronized: {NO_ROUND[self.name]}"
        return ""

    @property
    def failure(self) -> str:
        """The reason why the controller failed, which fails the run; empty if it did not fail."""
        if self.outcome["state"] != "failed":
            return ""
        return f"{self._asked}: the controller failed: {self.outcome['failure'] or 'it gave no reason'}"


def _is_over(topology: Topology, link: str, elapsed_s: float) -> bool:
    """Return whether a link's trace has ended, after which the link carries nothing."""
    its = topology.links.get(link)
    return its is not None and its.trace is not None and its.trace.at(elapsed_s) is None
