"""Enrolment of one more member during an elastic run.

1. The run makes the request AddMember: the member's name and job, and the network that includes it.
2. The controller adds the member's socket, token, job and links. The other members are not told yet.
3. The member joins as a lost member does: by a plan that includes it, with which the others get its keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.spec import Newcomer
from testbed.controller.service import ControllerService
from testbed.errors import DetailedError
from testbed.planning import Member, Pair, PhysicalLink, View


class NotEnrolled(DetailedError, ValueError):
    """The run can't take the member. The text says why, and what to do instead."""


async def enrol(
    controller: ControllerService,
    newcomer: Newcomer,
    members: tuple[Member, ...],
    links: Mapping[str, PhysicalLink],
    routes: Mapping[Pair, tuple[str, ...]],
) -> None:
    """Let a new member join from now on.

    Args:
        controller: The controller.
        newcomer: The member and its job.
        members: All members, the new one included.
        links: The network's links, those of the new member included.
        routes: The links on the route from each member to each other.

    Raises:
        NotEnrolled: The run can't take the member.
    """
    coordinator = _coordinator_for_newcomers(controller)
    if newcomer.name in coordinator.spec.members:
        raise NotEnrolled(
            f"{newcomer.name!r} is a member of this run already; use another name", rule="member", member=newcomer.name
        )
    known = coordinator.maker.options.view
    try:
        at_s = coordinator.clocks.unix()
        view = View.of_network(members, links, routes, known.model_bytes, at_s, known.knowledge)
        spec = coordinator.spec.with_member(newcomer, view)
    except ValueError as error:  # pydantic's ValidationError, ViewError
        raise NotEnrolled(str(error), rule="spec", member=newcomer.name) from error
    coordinator.identities.add(newcomer.name)
    await controller.server.listen_for(newcomer.name)
    controller.spec = spec
    coordinator.follow(spec)
    controller.changes.announce()


def _coordinator_for_newcomers(controller: ControllerService) -> AllReduceCoordinator:
    """Return the coordinator of a run that takes new members now.

    Raises:
        NotEnrolled: The run takes none.
    """
    coordinator = controller.coordinator
    if not isinstance(coordinator, AllReduceCoordinator):
        raise NotEnrolled(
            "a gossip run takes no new member: its graph is made at the start. Write the worker into the topology file",
            rule="gossip",
        )
    if coordinator.spec.elastic is None:
        raise NotEnrolled(
            "only an elastic run takes a new member; write `elastic: {quorum: 2}` in its file", rule="not-elastic"
        )
    if not controller.server.local:
        raise NotEnrolled(
            "members that come over TCP can't be added during a run; start the controller with the name in --members",
            rule="secrets",
        )
    if controller.state != "running":
        raise NotEnrolled(
            f"the run is {controller.state}; a new member can join only while it is running", rule="not-running"
        )
    return coordinator
