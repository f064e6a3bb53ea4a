"""Overlapping rounds: a round may begin when the first mean of the previous one is final."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Group, Plan
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat, Kind
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.errors import SyncError
from testbed.sync.transport.frame import FrameFormat
from testbed.sync.transport.handshake import TransportSettings
from tests.sync import sessions
from tests.sync.delayed_network import DelayedFrame, DelayedNetwork
from tests.sync.plans import chain, names, star
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m0"),), 1024)
HALVES = tuple(Group(part, (chain(part),)) for part in (MEMBERS[:1], MEMBERS[1:]))
TIMEOUT_S = PATIENCE_S


class LateMean(DelayedNetwork):
    """Delays the last mean of round 2 to m1 until the others have long begun round 4."""

    def send(self, source: str, target: str, wire: FrameFormat, delayed: DelayedFrame) -> None:
        head = ChunkHeaderFormat(len(MEMBERS)).unpack(delayed.frame.header)
        deliver = partial(super().send, source, target, wire, delayed)
        last = head.offset + delayed.frame.length // 4 == head.elements
        if (target, head.round, head.kind) == ("m1", 2, Kind.MEAN) and last:
            threading.Timer(0.3, deliver).start()
        else:
            deliver()


@contextmanager
def groups(plan: Plan, network: DelayedNetwork | None = None) -> Iterator[list[AllReduceGroup]]:
    network = network or DelayedNetwork(seed=1)
    roster = dict.fromkeys(plan.members, ("", 0))
    made = [
        AllReduceGroup(plan, TransportSettings(member, {}, TIMEOUT_S), roster, make_outbox=network.outbox)
        for member in plan.members
    ]
    for group in made:
        network.add(group)
    try:
        yield made
    finally:
        for group in made:
            group.close()
        network.close()


def at_once(made: list[AllReduceGroup], work: Callable[[AllReduceGroup], object]) -> list[object]:
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(work, made))


def begins_beside(group: AllReduceGroup, elements: int, timeout_s: float = TIMEOUT_S) -> tuple[float, float]:
    """Begin two rounds before either ends. Returns the sum of each mean.

    `timeout_s` is for these two rounds only: the round before them may take longer on a busy machine.
    """
    first, second = torch.ones(1000), torch.full((elements,), 2.0)
    group.begin(torch.ones(1000), 1.0, overlaps=True)()
    group.settings = replace(group.settings, timeout_s=timeout_s)
    ends = [group.begin(first, 1.0, overlaps=True), group.begin(second, 1.0, overlaps=True)]
    for end in ends:
        end()
    return first.sum().item(), second.sum().item()


def test_a_round_begins_before_the_one_before_has_ended() -> None:
    with groups(PLAN) as made:
        assert at_once(made, lambda group: begins_beside(group, 1000)) == [(1000, 2000)] * 3


def test_what_is_queued_keeps_its_room_while_newer_rounds_open() -> None:
    """m1 lacks a mean of round 2 and takes part in round 3, which lets m2 begin round 4: m0 holds all three."""

    def work(group: AllReduceGroup) -> list[float]:
        tensors = [torch.full((1000,), float(number)) for number in range(6)]
        group.begin(tensors[0], 1.0, overlaps=True)()
        end = group.begin(tensors[1], 1.0, overlaps=True)
        for tensor in tensors[2:]:
            following = group.begin(tensor, 1.0, overlaps=True)
            end()
            end = following
        end()
        return [tensor.mean().item() for tensor in tensors]

    with groups(PLAN, LateMean(seed=1)) as made:
        assert at_once(made, work) == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 3


def test_a_round_of_a_new_shape_waits() -> None:
    """A peer that has had no tensor of the shape would block its connection, and with it older frames."""
    with groups(PLAN) as made, pytest.raises(SyncError) as caught:
        at_once(made, lambda group: begins_beside(group, 999, 0.5))
    assert (caught.value.rule, caught.value.round, caught.value.epoch) == ("timeout", 2, 0)


def test_rounds_of_groups_wait() -> None:
    with (
        groups(replace(PLAN, groups=HALVES, period=2)) as made,
        pytest.raises(SyncError) as caught,
    ):
        at_once(made, lambda group: begins_beside(group, 1000, 0.5))
    assert (caught.value.rule, caught.value.round, caught.value.epoch) == ("timeout", 2, 0)


def test_members_that_wait_for_each_round_work_with_members_that_do_not(tmp_path: Path) -> None:
    """Each member decides by itself whether its rounds overlap."""

    def work(session: sync.Session) -> list[float]:
        tensors = [torch.full((5000 if number % 3 else 700,), float(number)) for number in range(30)]
        if session.name == "m1":
            for tensor in tensors:
                session.allreduce(tensor)
        else:
            for each in [session.allreduce(tensor, async_op=True) for tensor in tensors]:
                each.wait()
        return [tensor.mean().item() for tensor in tensors]

    results = sessions.run(tmp_path, PLAN, work)
    assert all(result == [float(number) for number in range(30)] for result in results.values())
