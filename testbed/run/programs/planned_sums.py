"""The controller of programs that train by the backend `wan`, or by a scheme: their large sums go by its plans.

It is a run's own, started beside them. What it writes is in the folder `wan` or `scheme` of their directory.
"""

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
from testbed.emulation.label import state_folder
from testbed.emulation.network.routing import Routes
from testbed.launch import BadCommand
from testbed.launch.ranks import Rank
from testbed.link import LinkState
from testbed.protocol import Job
from testbed.run.conclusion.idle import controller_failure, unused_controller
from testbed.run.service import ADDRESS, ControllerFailed, ControllerProcess
from testbed.run.view import declared_states, view_of
from testbed.spec.topology import Topology

#: What DistributedDataParallel has in a bucket, unless it is told otherwise: plans are made for sums of such a size.
BUCKET_BYTES = 25 * 1024 * 1024
#: How many sums there will be is the programs' affair.
ENDLESS = 1_000_000_000
POLICY = "auto"


class PlannedSums:
    """A context manager: the controller is there while inside. Its members are the workers of `ranks`, each with one
    process, on a network whose links have these states (None: as declared); its sockets are in the network's `folder`.
    `variables` say what processes do by it, TESTBED_BACKEND or TESTBED_SCHEME.

    `outcome`, for a summary, says once it is over who joined, how many rounds there were, and the swaps of plans.
    """

    def __init__(
        self,
        topology: Topology,
        states: Mapping[str, LinkState] | None,
        ranks: Sequence[Rank],
        folder: Path,
        directory: Path,
        variables: Mapping[str, str],
    ) -> None:
        members = tuple(rank.worker for rank in ranks)
        states = declared_states(topology) if states is None else states
        whole = view_of(topology, Routes.over(topology), states, BUCKET_BYTES, time.time(), "measured")
        view = whole.among(members)
        self._spec = ControllerSpec(
            members=view.names,
            secret=secrets.token_hex(32),
            jobs={name: Job(ENDLESS) for name in view.names},
            planning=PlanningSpec(view=view, policy=POLICY),
        )
        self._folder = folder
        self.name = "wan" if "TESTBED_BACKEND" in variables else "scheme"
        self._variables = variables
        self._out = directory / self.name
        self._stack = ExitStack()
        self.outcome: dict[str, Any] = {"state": "not started", "joined": [], "round": None}

    @classmethod
    def standing(
        cls, status: Mapping[str, Any], ranks: Sequence[Rank], directory: Path, variables: Mapping[str, str]
    ) -> PlannedSums:
        """On a network with this status, as it is now."""
        states = {name: LinkState(at["rate_bps"], at["delay_s"], up=at["up"]) for name, at in status["links"].items()}
        topology, folder = Topology.load(Path(status["file"])), state_folder(status["name"])
        return cls(topology, states, ranks, folder, directory, variables)

    def __enter__(self) -> PlannedSums:
        with ExitStack() as stack:
            lock = stack.enter_context((self._folder / "wan.lock").open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadCommand(
                    "another launch on this network has the controller's sockets\n"
                    "    write instead: the same without --backend or --scheme, or wait for its end"
                ) from None
            (self._out / "logs").mkdir(parents=True)
            stack.callback((self._folder / "controller.json").unlink, missing_ok=True)  # its secret is in there
            self._controller = stack.enter_context(ControllerProcess(self._spec, self._folder, self._out))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            status = self._controller.client.status()
            self.outcome = {name: status[name] for name in ("state", "failure", "joined", "round", "epoch", "swaps")}
        except ControllerError as error:
            self.outcome |= {"state": "failed", "failure": self._why_gone() or str(error)}
        self._stack.close()

    def check(self) -> None:
        """Raise ControllerFailed when the controller's process has ended."""
        self._controller.check()

    def _why_gone(self) -> str:
        try:
            self.check()
        except ControllerFailed as error:
            return str(error)
        return ""

    def told(self, rank: Rank, on_host: bool = False) -> Rank:
        """A process that is told of the controller: where it is, in a container or on this machine, and its name."""
        address = f"unix:{self._folder / 'control' / rank.worker / SOCKET}" if on_host else ADDRESS
        own = {**self._variables, "TESTBED_CONTROLLER": address, "TESTBED_MEMBER": rank.worker}
        return replace(rank, environment=rank.environment | own)

    @property
    def idle(self) -> str:
        """Return why the controller was there for nothing; empty where it was not."""
        (setting,) = self._variables.values()
        return unused_controller(self.name, setting, self.outcome)

    @property
    def failure(self) -> str:
        """Return how the controller failed, once it is over; empty where it did not."""
        (setting,) = self._variables.values()
        return controller_failure(self.name, setting, self.outcome)
