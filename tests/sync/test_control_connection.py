"""A member's connection to the controller on simulated time: leases that expire, and a controller that is away."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest

from testbed.controller.model.actions import Tell
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.spec import Elasticity
from testbed.protocol import Confirm, ControlMessage, Goodbye, Renew, Stop
from testbed.sync.control_connection import RENEWALS, RETRY_S, ControlConnection
from tests.sync.simulated_time import SimulatedTime

pytestmark = pytest.mark.pure

LEASE_S = 12.0
MEMBERS = ("a", "b", "c")


class Channel:
    """The controller's end of a channel; `on_message` is called with each message."""

    def __init__(self, on_message: Any) -> None:
        self.open = True
        self.coming: deque[ControlMessage] = deque()
        self._on_message = on_message

    def send(self, message: ControlMessage) -> None:
        if not self.open:
            raise OSError("closed")
        self._on_message(message)

    def receive(self) -> ControlMessage | None:
        return self.coming.popleft() if self.coming else None

    def close(self) -> None:
        self.open = False


def connection_of(channel: Channel, time: SimulatedTime, connect: Any = None, rejoin: Any = tuple) -> ControlConnection:
    return ControlConnection(channel, "c", rejoin, LEASE_S, connect, time)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("frozen_s", "lost"), [(0.5 * LEASE_S, False), (1.5 * LEASE_S, True), (4 * LEASE_S, True)])
def test_a_member_that_freezes_for_a_lease_loses_it_and_is_told_so_when_it_wakes(
    frozen_s: float, lost: bool, seed: int
) -> None:
    time, draw = SimulatedTime(), Random(seed)
    membership = AllReduceMembership(Identities(MEMBERS, "hush"), Elasticity(quorum=2, lease_s=LEASE_S))
    membership.leases.begin(membership.present, 0.0)
    freezes_s, end_s = draw.uniform(1.0, 40.0), 150.0
    gone: dict[str, str] = {}
    frozen = False

    def on_message(message: ControlMessage) -> None:
        nonlocal frozen
        if time.now_s >= freezes_s and not frozen:
            frozen = True
            with connection._changed:  # like a stopped process, while time goes on
                time.wait_for(connection._changed, lambda: False, frozen_s)
        assert isinstance(message, Renew)
        membership.leases.renew(message.member, time.now_s)

    def look() -> None:
        for member in membership.lost_members(time.now_s).keys() & membership.present:
            gone.update(membership.lost_members(time.now_s))
            for action in membership.remove({member: gone[member]}):
                assert isinstance(action, Tell) and action.member == member == "c"
                channel.coming.append(action.message)
        time.call_later(membership.leases.check_interval_s, look)

    def renew(member: str) -> None:
        membership.leases.renew(member, time.now_s)
        time.call_later(draw.uniform(0.8, 1.2) * LEASE_S / RENEWALS, lambda: renew(member))

    channel = Channel(on_message)
    connection = connection_of(channel, time)
    for member in ("a", "b"):
        renew(member)
    look()
    time.call_later(end_s, connection.close)
    connection.renew()
    assert time.now_s >= end_s
    assert gone == ({"c": f"it did not renew its lease for {LEASE_S:g} s"} if lost else {})
    said = connection.receive() if lost else None
    assert not lost or (isinstance(said, Stop) and said.again and "did not renew its lease" in said.reason)


@pytest.mark.parametrize("seed", range(5))
def test_a_connection_is_made_again_once_the_controller_is_back_and_sends_the_member_s_state(seed: int) -> None:
    time, said = SimulatedTime(), []
    back_s = Random(seed).uniform(0.0, 30.0)

    def connect() -> Channel:
        if time.now_s < back_s:
            raise OSError("nobody listens")
        channel = Channel(said.append)
        channel.coming.append(Confirm(7))
        return channel

    connection = connection_of(Channel(said.append), time, connect, lambda: [Renew("c")])
    assert connection.receive() == Confirm(7)
    assert said == [Renew("c")] and back_s <= time.now_s <= back_s + 2 * RETRY_S


def test_a_controller_that_is_back_hears_of_the_goodbye() -> None:
    """It was away, or was killed after it had heard the first one; the member would count as lost once it is gone."""
    time, said = SimulatedTime(), []

    def connect() -> Channel:
        channel = Channel(said.append)
        channel.coming.append(Stop("done"))
        return channel

    before = Channel(said.append)
    before.close()
    connection = connection_of(before, time, connect, lambda: [Renew("c")])
    connection.say_goodbye(Goodbye("c", 7))
    assert said == []
    assert connection.receive() == Stop("done")
    assert said == [Renew("c"), Goodbye("c", 7)]


def test_a_leaving_member_does_not_connect_again() -> None:
    time = SimulatedTime()
    connection = connection_of(Channel(lambda message: None), time, lambda: pytest.fail("it looked for the controller"))
    connection.leave()
    assert connection.receive() is None and time.now_s == 0.0
