"""The interface of the two coordinators, which decide what the members of a run do together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from testbed.api.requests import Request
from testbed.controller.model.actions import Actions
from testbed.controller.model.clocks import SYSTEM, Clocks, UnixClock
from testbed.controller.model.contradiction import Contradiction
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import MembershipEvent
from testbed.controller.model.spec import ControllerSpec
from testbed.errors import DetailedError
from testbed.planning import Pair, PhysicalLink
from testbed.protocol import Arrived, ControlMessage, Goodbye, Hello, Rejoin, Report


class Progress(ABC):
    """A coordinator's part of what is said of a run, in plain values. Times are Unix seconds, rates bit/s of frames."""

    @abstractmethod
    def rounds(self, since: int) -> list[dict[str, Any]]:
        """The complete rounds from number `since` on, in short, as far as they are kept."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """How far members are now."""

    @abstractmethod
    def final(self) -> dict[str, Any]:
        """How far they came."""


class NotForMembers(DetailedError, ValueError):
    """The members of this run can't do what is asked."""

    def __init__(self, members: str, request: Request) -> None:
        asked = type(request).__name__
        super().__init__(f"{members}: this controller takes no {asked}", rule="not-for-members", given=asked)


class Coordinator(ABC):
    """Decides, event by event, what members do together; see actions.py for how it has that done.

    `running` from the moment that all members are there until the run's end. `goodbyes` are what members said last,
    `events` which of them left and came meanwhile, `progress` how far they are.
    """

    progress: Progress
    #: What makes the identities of the members, of the secret.
    identify: ClassVar[type[Identities]] = Identities

    def __init__(self, spec: ControllerSpec, clocks: Clocks = SYSTEM) -> None:
        self.spec = spec
        self.clocks = clocks
        self._unix = UnixClock(clocks.unix(), clocks.monotonic())
        self.running = False
        self.goodbyes: dict[str, Goodbye] = {}
        self.events: list[MembershipEvent] = []
        self.identities = self.identify(spec.members, spec.secret)

    @property
    @abstractmethod
    def present(self) -> frozenset[str]:
        """The members that take part."""

    @property
    def over(self) -> bool:
        """Whether all who take part have said goodbye."""
        return self.running and bool(self.present) and self.goodbyes.keys() >= self.present

    @abstractmethod
    def start(self) -> None:
        """Be ready for members. PolicyError when they are to go by plans, and there is none."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is put on record any more."""

    def note(
        self, kind: Literal["left", "came"], member: str, after: int | None, epoch: int = 0, why: str = ""
    ) -> None:
        """Put on record that a member left or came: `after` which round, or in which iteration."""
        self.events.append(MembershipEvent(kind, member, self.clocks.unix(), after, epoch, why))

    # Members

    def moment(self, said_s: float) -> float:
        """What a member says by Unix time, in seconds of the clock that nobody sets."""
        return self._unix.moment(said_s, self.clocks.unix(), self.clocks.monotonic())

    def check_names(self, report: Report | Arrived) -> None:
        """Contradiction when it says something of who is no member of the run."""
        if strangers := sorted(report.named.difference(self.spec.members)):
            raise Contradiction(
                f"its {report.kind} names {strangers[0]!r}, which is no member of this run",
                rule="unknown-member",
                member=report.member,
                given=strangers[0],
            )

    @abstractmethod
    def begin(self, hellos: Mapping[str, Hello]) -> Actions:
        """All members are there for the first time."""

    @abstractmethod
    def comes(self, hello: Hello) -> Actions:
        """A member, which may have been there before, wants to take part from now on."""

    def came_back(self, hello: Hello, rejoin: Rejoin) -> Actions:
        """A member that never left found its controller again, which may have been started anew.

        Contradiction when it can't stand where it says, or members of such a run never come back.
        """
        raise Contradiction(
            f"{hello.member!r} says where it stands, and members of this run do not come back",
            rule="no-return",
            member=hello.member,
        )

    @abstractmethod
    def receive(self, message: ControlMessage) -> Actions:
        """A member's message. Contradiction when it can't be, by earlier ones and by what is known of the run."""

    @abstractmethod
    def died(self, member: str, why: str, for_good: bool = False) -> Actions:
        """A member's connection ended before its goodbye; `for_good` where it said what can't be, or does not read."""

    @abstractmethod
    def proceed(self) -> Actions:
        """Called after each event: take up what had to wait until it was dealt with."""

    @abstractmethod
    def finish(self) -> Actions:
        """All have said goodbye."""

    def end(self) -> None:
        """The run is done, or has failed: nobody is looked after any more."""
        self.running = False

    # The run and people

    @abstractmethod
    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now. ViewError when it contradicts itself."""

    @abstractmethod
    def do(self, request: Request) -> Actions:
        """Carry out what people ask for.

        Raises:
            NotForMembers: Members of such a run never do that.
            PolicyError, GraphError: There is no such plan or graph for these members.
        """
