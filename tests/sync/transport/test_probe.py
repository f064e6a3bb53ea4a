"""Probes over the loopback, and trains of artificial times: losses do not change the measured rate."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import PROBE_TRAINS, Probe, Train
from testbed.sync.transport import probe, sockets
from testbed.sync.transport.arrivals import Arrivals
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.probe import (
    COUNTED_BYTES,
    LEAST_PACKETS,
    PACKET_BYTES,
    ProbeListener,
    ProbeSender,
    ProbeTrain,
)
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names
from tests.waiting import PATIENCE_S, until

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (chain(MEMBERS),))
#: Seconds between rounds: the test's condition, which reads all reports after each new one, must keep up.
PAUSE_S = 0.01

KEY = b"k" * 32
#: The packets of a train. A socket's buffer holds 92, all three trains of a probe, so a busy host loses none.
PACKETS = 25
PACE = 2_000_000
BYTES = int(PROBE_TRAINS * PACKETS * COUNTED_BYTES) + PROBE_TRAINS
PROBE = Probe("b", BYTES, BYTES / PACE)
ONE = Probe("b", BYTES // PROBE_TRAINS, BYTES / PROBE_TRAINS / PACE, trains=1)


@dataclass
class ProbedMember:
    """The member `b`, which receives probes."""

    address: tuple[str, int]
    arrivals: Arrivals
    listener: ProbeListener
    trains: list[Train]

    def has_trains(self, count: int) -> bool:
        """Return whether `count` trains of `a` have come."""
        self.trains += self.arrivals.take().get("a", ())
        return len(self.trains) >= count

    def prober(
        self, key: bytes = KEY, member: str = "a", sends: Callable[[str], bool] = lambda peer: False
    ) -> ProbeSender:
        return ProbeSender(TransportSettings(member, {"b": key}, 5.0), {"b": self.address}, sends)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a sender on a busy host to pause inside a train."""
    monkeypatch.setattr(probe, "SILENCE_S", 3.0)


@pytest.fixture
def probed() -> Iterator[ProbedMember]:
    arrivals = Arrivals()
    with sockets.listen("127.0.0.1", 5) as accepting:
        listener = ProbeListener(accepting, TransportSettings("b", {"a": KEY}, 5.0), arrivals)
        with closing(listener):
            yield ProbedMember(accepting.getsockname(), arrivals, listener, [])


def left_us(number: int, pace: float = PACE) -> int:
    """Return the microseconds from the train's begin to a packet."""
    return int(1e6 * number * COUNTED_BYTES / pace)


@pytest.mark.pure
@given(st.floats(1e5, 1e8), st.integers(LEAST_PACKETS, 200), st.integers(1, 3))
def test_a_train_goes_at_the_link_s_rate_whatever_is_lost_before_it(rate: float, came: int, step: int) -> None:
    """A full queue loses packets, and the link sends the rest without a pause."""
    coming = ProbeTrain(0, 0, 1000.0)
    for number in range(1, came):
        coming.add(step * number, left_us(step * number), 1000.0 + number * COUNTED_BYTES / rate)
    assert coming.train is not None
    assert coming.train.bytes / coming.train.seconds == pytest.approx(rate, rel=0.02)
    assert coming.train.allowed_bytes_s == pytest.approx(PACE, rel=0.001)


@pytest.mark.pure
@given(st.integers(0, LEAST_PACKETS - 2), st.floats(0.001, 10.0))
def test_a_sender_that_had_no_processor_says_so(number: int, paused_s: float) -> None:
    """A train that came as slowly as it left shows a lower bound of the path's rate."""
    coming = ProbeTrain(0, 0, 1000.0)
    for after in range(1, LEAST_PACKETS):
        at_s = left_us(after) / 1e6 + paused_s * (after > number)
        coming.add(after, int(1e6 * at_s), 1000.0 + at_s)
    assert coming.train is not None
    assert coming.train.bytes / coming.train.seconds == pytest.approx(coming.train.allowed_bytes_s, rel=0.01)


@pytest.mark.pure
def test_few_packets_say_nothing_however_often_they_come() -> None:
    coming = ProbeTrain(0, 0, 1000.0)
    for number in range(1, LEAST_PACKETS - 1):
        for copy in range(3):
            coming.add(number, left_us(number), 1000.0 + number + copy / 10)
    assert coming.train is None


@pytest.mark.local
def test_a_probe_has_the_asked_number_of_trains(probed: ProbedMember) -> None:
    with closing(probed.prober()) as prober:
        prober.probe(ONE)
        prober.probe(ONE)
        until(lambda: probed.has_trains(2))
    assert [train.bytes for train in probed.trains] == [int((PACKETS - 1) * COUNTED_BYTES)] * 2


@pytest.mark.local
def test_one_train_waits_until_nothing_is_sent_to_its_peer(
    probed: ProbedMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "WAIT_S", PATIENCE_S)
    asked, busy = [0], [True]

    def sends(peer: str) -> bool:
        asked[0] += peer == "b"
        return busy[0]

    with closing(probed.prober(sends=sends)) as prober:
        for _ in range(2):
            prober.probe(ONE)
        before = asked[0]
        until(lambda: asked[0] > before + 2)  # one waits by now, and stands for the other
        prober.probe(PROBE)  # stands for it, too, and goes at once
        until(lambda: probed.has_trains(PROBE_TRAINS))
        prober.probe(ONE)
        before = asked[0]
        until(lambda: asked[0] > before + 2)
        assert not probed.has_trains(PROBE_TRAINS + 1)
        busy[0] = False
        until(lambda: probed.has_trains(PROBE_TRAINS + 1))
    assert not probed.has_trains(PROBE_TRAINS + 2)


@pytest.mark.local
def test_one_train_does_not_wait_for_long(probed: ProbedMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "WAIT_S", 0.05)
    with closing(probed.prober(sends=lambda peer: True)) as prober:
        prober.probe(ONE)
        until(lambda: probed.has_trains(1))


@pytest.mark.local
def test_a_probe_is_trains_that_came_no_faster_than_they_left(probed: ProbedMember) -> None:
    with closing(probed.prober()) as prober:
        prober.probe(PROBE)
        until(lambda: probed.has_trains(PROBE_TRAINS))
    assert [train.bytes for train in probed.trains] == [int((PACKETS - 1) * COUNTED_BYTES)] * PROBE_TRAINS
    # They leave in time, or later; a late first one makes the others look faster.
    assert sorted(train.allowed_bytes_s for train in probed.trains)[0] <= 1.5 * PACE
    assert sorted(train.bytes / train.seconds for train in probed.trains)[0] <= 1.5 * PACE


@pytest.mark.local
def test_a_clock_that_is_set_back_hides_no_train(probed: ProbedMember, monkeypatch: pytest.MonkeyPatch) -> None:
    back_ns = iter(range(time.time_ns(), 0, -(10**12)))
    monkeypatch.setattr(time, "time_ns", lambda: next(back_ns))
    with closing(probed.prober()) as prober:
        prober.probe(PROBE)
        until(lambda: probed.has_trains(PROBE_TRAINS))


@pytest.mark.local
def test_a_probe_without_the_key_is_ignored(probed: ProbedMember) -> None:
    with closing(probed.prober(key=b"x" * 32)) as stranger, closing(probed.prober(member="c")) as unknown:
        stranger.probe(ONE)
        unknown.probe(ONE)
        with closing(probed.prober()) as prober:
            prober.probe(PROBE)
            until(lambda: probed.has_trains(PROBE_TRAINS))
    assert not probed.has_trains(PROBE_TRAINS + 1)


@pytest.mark.local
def test_garbage_is_passed_over(probed: ProbedMember) -> None:
    random = Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(probed.address)
        for garbage in (b"", b"tbp2", bytes(PACKET_BYTES), b"\xff" * PACKET_BYTES, bytes(2 * PACKET_BYTES)):
            sending.send(garbage)
        for _ in range(10):
            sending.send((b"tbp2" + random.randbytes(random.randrange(64))).ljust(PACKET_BYTES, random.randbytes(1)))
    with closing(probed.prober()) as prober:
        prober.probe(PROBE)
        until(lambda: probed.has_trains(PROBE_TRAINS))


def packets(train: int, upto: int = PACKETS) -> list[bytes]:
    """Return the first `upto` packets of a train of `a`."""
    sender = ProbeSender(TransportSettings("a", {}, 5.0), {})
    return [sender._packet(KEY, probe._Packet("a", train, PACKETS, number, left_us(number))) for number in range(upto)]


@pytest.mark.local
def test_nothing_counts_that_was_heard_before(probed: ProbedMember) -> None:
    """Packets are sent again unchanged: a whole train, one packet inside another train, and an old train later."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(probed.address)
        old, new, last = packets(1), packets(2), packets(3)
        parts = old, [*old, *new[:10], old[3], *new[10:]], [*new, *last]
        for trains, part in enumerate(parts, start=1):  # each fits into a socket's buffer
            for packet in part:
                sending.send(packet)
            until(partial(probed.has_trains, trains))
    assert [train.bytes for train in probed.trains] == [int((PACKETS - 1) * COUNTED_BYTES)] * 3


@pytest.mark.local
def test_a_train_whose_end_is_lost_is_over_in_time_whatever_strangers_send(
    probed: ProbedMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SILENCE_S", PATIENCE_S)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(probed.address)
        for packet in packets(1, PACKETS - 1):
            sending.send(packet)
            time.sleep(0.0001)
        until(lambda: "a" in probed.listener._current and probed.listener._current["a"]._received == PACKETS - 1)
        assert not probed.has_trains(1)
        monkeypatch.setattr(probe, "SILENCE_S", 0.1)  # no packet can come late any more

        def has_train_beside_garbage() -> bool:
            sending.send(b"garbage")
            return probed.has_trains(1)

        until(has_train_beside_garbage)
    assert [train.bytes for train in probed.trains] == [int((PACKETS - 2) * COUNTED_BYTES)]


@pytest.mark.local
def test_what_can_not_be_sent_ends_nothing(probed: ProbedMember) -> None:
    with closing(probed.prober()) as prober:
        prober.probe(Probe("nobody", PROBE.bytes, PROBE.seconds))
        prober.probe(Probe("b", 0, 0.0))
        prober.probe(Probe("b", 2**53, 0.0))
        prober.probe(PROBE)
        until(lambda: probed.has_trains(PROBE_TRAINS))


@pytest.mark.local
def test_closing_ends_a_probe_that_would_take_long(probed: ProbedMember) -> None:
    prober = probed.prober()
    prober.probe(Probe("b", PROBE.bytes, 3600.0))
    until(lambda: "a" in probed.listener._newest)  # its first packet has come
    prober.close()
    until(lambda: not (prober._thread and prober._thread.is_alive()))


@pytest.mark.local
def test_after_closing_no_probe_is_sent(probed: ProbedMember) -> None:
    prober = probed.prober()
    prober.close()
    prober.probe(PROBE)
    assert prober._thread is None


@pytest.mark.local
def test_a_member_whose_port_another_program_has_says_that_it_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with sockets.listen("127.0.0.1", 5) as accepting, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(accepting.getsockname())
        with closing(ProbeListener(accepting, TransportSettings("c", {}, 5.0), Arrivals())):
            assert [record.message.split()[0] for record in caplog.records] == ["c"]


#: The reports of three members in a hundred rounds, each of PAUSE_S or more: a probe is over by then.
AWAITED_REPORTS = 300


def reduce_until_swapped(controller: Controller, member: str) -> torch.Tensor:
    """Run rounds under the plan and one under the next. Returns the mean of the last one."""
    with sync.join(controller.address, member, "127.0.0.1", timeout=PATIENCE_S) as session:
        while True:
            done = session.allreduce(torch.full((5,), float(MEMBERS.index(member))))
            session.report()
            time.sleep(PAUSE_S)
            if done.epoch:
                return done.tensor


@pytest.mark.local
def test_a_probe_reaches_a_peer_that_no_plan_sends_to_and_disturbs_no_round(tmp_path: Path) -> None:
    source, target = MEMBERS[0], MEMBERS[2]  # both ends of the chain
    with ThreadPoolExecutor(len(MEMBERS)) as pool, Controller(tmp_path, PLAN, job()) as controller:

        def arrived() -> list[Train]:
            reports = [report for report in controller.reports() if report.member == target]
            return [train for report in reports for train in report.arrivals.get(source, ())]

        def is_over(due: int) -> bool:
            return len(arrived()) >= PROBE_TRAINS or len(controller.reports()) >= due

        results = [pool.submit(reduce_until_swapped, controller, member) for member in MEMBERS]
        try:
            controller.await_condition(lambda: bool(controller.reports()))
            controller.probe(source, "nobody", PROBE.bytes, PROBE.seconds)
            while len(arrived()) < PROBE_TRAINS:  # a busy host loses datagrams
                due = len(controller.reports()) + AWAITED_REPORTS
                controller.probe(source, target, PROBE.bytes, PROBE.seconds)
                controller.await_condition(partial(is_over, due))
        finally:
            controller.prepare(replace(PLAN, epoch=1))  # the members' rounds end with it
        assert all(torch.equal(result.result(PATIENCE_S), torch.ones(5)) for result in results)
        assert not any(goodbye.error for goodbye in controller.goodbyes())
