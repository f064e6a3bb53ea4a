"""Letting one more member into an elastic run that goes on.

the run    POST /members: its name and job, and the network with it
here       it is known: its socket, its token, its job, its links; none of the others is told as yet
it comes   as one does that was lost: there is a plan with it, and with that each other member's key for it
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.spec import Newcomer
from testbed.controller.service import ControllerService
from testbed.errors import DetailedError
from testbed.planning import Member, Pair, PhysicalLink, View


class NotEnrolled(DetailedError, ValueError):
    """The run can't take the member; the text says why, and what to do instead."""


async def enrol(
    controller: ControllerService,
    newcomer: Newcomer,
    members: tuple[Member, ...],
    links: Mapping[str, PhysicalLink],
    routes: Mapping[Pair, tuple[str, ...]],
) -> None:
    """From now on it is let in: `members` are all of them, with it, in this network. NotEnrolled."""
    coordinator = _taking(controller)
    if newcomer.name in coordinator.spec.members:
        raise NotEnrolled(f"{newcomer.name!r} is a member of this run already", rule="member", member=newcomer.name)
    group = coordinator.group
    now_s, known = group.clocks.unix(), group.planning.view
    try:
        view = View.of_network(members, links, routes, known.model_bytes, now_s, known.knowledge)
        spec = coordinator.spec.with_member(newcomer, view)
    except ValueError as error:  # pydantic's and ViewError are
        raise NotEnrolled(str(error), rule="spec", member=newcomer.name) from error
    coordinator.identities.add(newcomer.name)
    await controller.server.listen_for(newcomer.name)
    controller.spec = coordinator.spec = spec
    group.follow(spec, now_s)
    controller.changes.announce()


def _taking(controller: ControllerService) -> AllReduceCoordinator:
    """The coordinator of a run that takes members now; NotEnrolled where it takes none."""
    coordinator = controller.coordinator
    if not isinstance(coordinator, AllReduceCoordinator):
        raise NotEnrolled(
            "members gossip over a graph that was made for them; write the worker into the topology file", rule="gossip"
        )
    if coordinator.spec.elastic is None:
        raise NotEnrolled(
            "nobody comes to a run that is not elastic; write `elastic: {quorum: 2}` in its file", rule="not-elastic"
        )
    if not controller.server.local:
        raise NotEnrolled(
            "members come over TCP, by secrets that were handed out; name it where the controller starts",
            rule="secrets",
        )
    if controller.state != "running":
        raise NotEnrolled(f"the run is {controller.state}, and members are let in while it goes on", rule="not-running")
    return coordinator
