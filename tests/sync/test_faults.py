"""Members that die, freeze and come back, and a controller that is away: real processes over loopback.

tests/sync/faults.py kills every member in every phase; here each member dies once, each in another phase. Deaths at any
step of a round (allreduce/test_recovery.py) and leases (test_control_connection.py) are tested without time as well.
"""

from __future__ import annotations

import json
import signal
import socket

import pytest

from tests.connections import connections_of
from tests.sync.cluster import PHASES, cluster, reported

MEMBERS = 5
#: A lease that expires within the test. It is renewed each third of it, so a busy machine may stop a member for 8 s.
LEASE_S = 12.0


def spoil(connection: socket.socket) -> bool:
    """Send bytes that are not a frame. Returns False if the connection's buffer is full."""
    try:
        return connection.send(bytes(64), socket.MSG_DONTWAIT) > 0
    except BlockingIOError:
        return False


@pytest.mark.long
@pytest.mark.local
def test_each_member_dies_and_restart_and_all_end_with_the_same_bits() -> None:
    with cluster(MEMBERS, 0.02) as made:
        for name, phase in zip(made.names, PHASES, strict=False):
            made.kill(name, phase)
        before = made.last_round("m0")
        made.kill_controller()
        made.await_round(before + 20)
        made.start_controller()
        made.until(lambda: bool(reported(made)))
        made.kill("m1", list(PHASES)[-1], restart=False)
        final = made.end(left_out=["m1"])
        made.check()
    assert final["state"] == "done" and final["identical"]
    assert [(passage["kind"], passage["member"]) for passage in final["membership_events"]] == [("left", "m1")]


@pytest.mark.physics
def test_a_member_that_freezes_loses_its_lease_and_is_told_so_when_it_wakes() -> None:
    """A lease of real processes expires in real time: a busy machine that stops the others as long would lose them."""
    with cluster(3, 0.02, lease_s=LEASE_S) as made:
        made.signal("m2", signal.SIGSTOP)
        before = made.last_round("m2")
        made.await_round(before + 5, ["m0", "m1"])
        made.signal("m2", signal.SIGCONT)
        made.until(lambda: made.ended("m2"))
        final = made.end(left_out=["m2"])
        made.check()
    assert final["identical"]
    (left,) = final["membership_events"]
    assert left["member"] == "m2" and "did not renew its lease" in left["why"]


@pytest.mark.physics
def test_a_connection_that_carries_garbage_is_made_again_and_nobody_is_lost() -> None:
    """Members begin another generation a lease of real time after their connections broke."""
    with cluster(3, 0.02, lease_s=LEASE_S) as made:
        for _ in range(2):
            before = made.last_round("m1")
            spoilt = [spoil(connection) for connection in connections_of(made.pid("m1"), socket.AF_INET)]
            assert any(spoilt)
            made.await_round(before + 20)
        final = made.end()
        made.check()
    assert final["identical"] and final["membership_events"] == []


@pytest.mark.local
def test_below_the_quorum_the_run_stops_with_the_reason() -> None:
    with cluster(3, 0.02, quorum=3) as made:
        made.kill("m1", next(iter(PHASES)), restart=False, recovers=False)
        written = made.folder / "out" / "final.json"  # written by the controller, which may end after the members
        made.until(lambda: all(made.ended(name) for name in made.names) and written.exists())
        final = json.loads(written.read_text())
    assert final["state"] == "failed"
    assert "m1 is gone" in final["failure"] and "2 members are left, and the quorum is 3" in final["failure"]
