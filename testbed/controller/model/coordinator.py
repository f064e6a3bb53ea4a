"""The interface of the two coordinators, for all-reduce and for gossip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from testbed.api.requests import Request
from testbed.controller.model.actions import Actions, Contradiction
from testbed.controller.model.clocks import SYSTEM, Clocks, UnixClock
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import MembershipEvent
from testbed.controller.model.spec import ControllerSpec
from testbed.errors import DetailedError
from testbed.planning import Pair, PhysicalLink
from testbed.protocol import Arrived, ControlMessage, Goodbye, Hello, Rejoin, Report, Unreached


class NotForMembers(DetailedError, ValueError):
    """The request does not fit this run's members: it is for all-reduce and they gossip, or the other way around."""

    def __init__(self, members: str, request: Request) -> None:
        asked = type(request).__name__
        super().__init__(f"{asked} is refused: {members}", rule="not-for-members", given=asked)


class Coordinator(ABC):
    """Decides, event by event, what members do together. Its decisions are actions (see actions.py)."""

    #: Makes the members' identities from the run's secret.
    identify: ClassVar[type[Identities]] = Identities

    def __init__(self, spec: ControllerSpec, clocks: Clocks = SYSTEM) -> None:
        self.spec = spec
        self.clocks = clocks
        self._unix = UnixClock(clocks.unix(), clocks.monotonic())
        #: True from the moment that all members are connected until the run's end.
        self.running = False
        #: The Goodbye of each member that has sent one.
        self.goodbyes: dict[str, Goodbye] = {}
        #: The members that left or came during the run.
        self.events: list[MembershipEvent] = []
        self.identities = self.identify(spec.members, spec.secret)

    @property
    @abstractmethod
    def present(self) -> frozenset[str]:
        """The members that take part now."""

    @property
    def over(self) -> bool:
        """True once all members that take part have said goodbye."""
        return self.running and bool(self.present) and self.goodbyes.keys() >= self.present

    def start(self) -> None:  # noqa: B027 - members that gossip get nothing that must be prepared
        """Prepare what members get when they join, such as the first plan.

        Raises:
            PolicyError: The policy finds no first plan.
        """

    def close(self) -> None:  # noqa: B027 - gossip has no such records
        """Close the files of the coordinator's records, such as the decision log."""

    def record_event(
        self, kind: Literal["left", "came"], member: str, after: int | None, epoch: int = 0, why: str = ""
    ) -> None:
        """Record that a member left or came; the arguments are the fields of MembershipEvent.

        `after` is the number of the last complete round, None before the first; in gossip the member's iteration.
        """
        self.events.append(MembershipEvent(kind, member, self.clocks.unix(), after, epoch, why))

    # Members

    def moment(self, said_s: float) -> float:
        """Convert a Unix time that a member reported to monotonic time."""
        return self._unix.moment(said_s, self.clocks.unix(), self.clocks.monotonic())

    def check_names(self, report: Report | Arrived | Unreached) -> None:
        """Check that a report names only members of the run.

        Raises:
            Contradiction: It names another.
        """
        if strangers := sorted(report.named.difference(self.spec.members)):
            text = f"its {report.kind} names {strangers[0]!r}, which is not a member of this run"
            number, epoch = (report.round, report.epoch) if isinstance(report, Report) else (None, None)
            raise Contradiction(
                text, rule="unknown-member", member=report.member, round=number, epoch=epoch, given=strangers[0]
            )

    @abstractmethod
    def begin(self, hellos: Mapping[str, Hello]) -> Actions:
        """Return the actions that begin the run, once all members are connected for the first time."""

    @abstractmethod
    def join(self, hello: Hello) -> Actions:
        """Handle a member that connects during the run, for the first time or after a restart."""

    def rejoin(self, hello: Hello, rejoin: Rejoin) -> Actions:
        """Handle a member that reconnects without having left. The controller may have been restarted meanwhile.

        Raises:
            Contradiction: The member's state is impossible, or this run takes no members back.
        """
        text = f"{hello.member!r} reconnected, and a gossip run takes no member back; start the member again"
        raise Contradiction(text, rule="no-return", member=hello.member)

    @abstractmethod
    def receive(self, message: ControlMessage) -> Actions:
        """Handle a member's message.

        Raises:
            Contradiction: The message contradicts earlier ones or the state of the run.
        """

    @abstractmethod
    def died(self, member: str, why: str, for_good: bool = False) -> Actions:
        """Handle the end of a member's connection before its goodbye.

        A member is excluded `for_good` if it sent an impossible message, or does not read.
        """

    @abstractmethod
    def proceed(self) -> Actions:
        """Do the work that had to wait until an event was handled. Called after each event."""

    @abstractmethod
    def finish(self) -> Actions:
        """Return the actions that end the run, after all members have said goodbye."""

    def end(self) -> None:
        """Stop watching the members: the run is done or has failed."""
        self.running = False

    # The members' progress, in plain values. Times are Unix seconds, rates are bit/s of frames.

    def rounds(self, since: int) -> list[dict[str, Any]]:
        """Return summaries of the kept complete rounds from number `since` on; gossip has no rounds."""
        return []

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return the members' current progress."""

    @abstractmethod
    def final(self) -> dict[str, Any]:
        """Return the members' final progress."""

    # The run and people

    def change_network(  # noqa: B027 - members gossip over their graph, whatever the network is
        self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]
    ) -> None:
        """Use another emulated network from now on.

        Raises:
            ViewError: Its links and routes contradict each other.
        """

    @abstractmethod
    def do(self, request: Request) -> Actions:
        """Carry out a user's request.

        Raises:
            NotForMembers: The request does not fit this run's members.
            PolicyError, GraphError: There is no such plan or graph for these members.
        """
