"""The merge of several changes of a fragment, also when a member is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.schemes.decoupled_diloco import DecoupledOptions
from testbed.schemes.decoupled_diloco.syncer import FragmentChange, FragmentWanted, GraceOver, Syncer, mean, radial

pytestmark = pytest.mark.pure

WEIGHTS = st.lists(st.floats(0.1, 100), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(0, 2**32))
def test_one_or_many_of_the_same_are_what_each_is(weights: list[float], seed: int) -> None:
    change = torch.randn(16, generator=torch.Generator().manual_seed(seed))
    for merge in (mean, radial):
        torch.testing.assert_close(merge([(weight, change) for weight in weights]), change, rtol=1e-4, atol=1e-5)


@given(WEIGHTS, st.integers(0, 2**32))
def test_radial_is_as_long_as_changes_are_in_the_mean(weights: list[float], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    changes = [(weight, torch.randn(64, generator=draw)) for weight in weights]
    lengths = sum(weight * float(change.norm()) for weight, change in changes) / sum(weights)
    assert float(radial(changes).norm()) == pytest.approx(lengths, rel=1e-4)


def test_changes_at_right_angles_keep_their_length_where_a_mean_does_not() -> None:
    changes = [(1.0, row) for row in 3 * torch.eye(9)]
    assert float(mean(changes).norm()) == pytest.approx(1)
    torch.testing.assert_close(radial(changes), torch.ones(9))


def test_what_cancels_out_or_is_nothing_is_averaged_as_it_is() -> None:
    one = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(radial([(1.0, one), (1.0, -one)]), torch.zeros(2))
    torch.testing.assert_close(radial([(1.0, torch.zeros(2)), (3.0, torch.zeros(2))]), torch.zeros(2))
    torch.testing.assert_close(radial([(1.0, torch.zeros(2)), (3.0, one)]), 0.75 * one)


def asked(quorum: int) -> Syncer:
    """Return a syncer of three members that has asked for their changes of its one fragment."""
    options = DecoupledOptions(every=1, fragments=1, quorum=quorum)
    syncer = Syncer("a", ("a", "b", "c"), options, [torch.zeros(2)], 1, lambda: 0.0)
    for member in ("a", "b", "c"):
        list(syncer.due(member))
    return syncer


CHANGE = FragmentChange(0, 1, 1.0, torch.ones(2))


def test_a_member_that_is_lost_does_not_end_the_grace_window_for_others() -> None:
    syncer = asked(quorum=1)
    assert [type(send.message) for send in syncer.changed("a", CHANGE)] == [GraceOver]
    assert list(syncer.remove("b")) == []
    list(syncer.changed("c", CHANGE))
    assert (syncer.merged, syncer.changes) == (1, 2)


def test_the_others_go_on_where_the_quickest_member_is_lost() -> None:
    """b has taken the steps of 20 fragments, and a those of five."""
    options = DecoupledOptions(every=1, fragments=1, quorum=1)
    syncer = Syncer("a", ("a", "b"), options, [torch.zeros(2)], 100, lambda: 0.0)
    for number in range(20):
        list(syncer.due("b"))
        if number % 4 == 0:
            list(syncer.due("a"))
        for member in "ab":
            list(syncer.changed(member, FragmentChange(0, number + 1, 1.0, torch.ones(2))))
    assert syncer.merged == 20
    assert [*syncer.remove("b")] == []
    (wanted,) = syncer.due("a")
    assert (wanted.to, wanted.message) == ("a", FragmentWanted(0, 21))


def test_a_merge_that_waited_for_a_lost_member_alone_goes_on() -> None:
    syncer = asked(quorum=3)
    assert [*syncer.changed("a", CHANGE), *syncer.changed("c", CHANGE)] == []
    list(syncer.remove("b"))
    assert (syncer.merged, syncer.changes) == (1, 2)


def test_the_grace_window_begins_where_a_lost_member_makes_the_quorum_smaller() -> None:
    syncer = asked(quorum=3)
    assert [*syncer.changed("a", CHANGE), *syncer.changed("b", CHANGE)] == []
    (over,) = syncer.remove("b")
    assert over.message == GraceOver(0, 1) and syncer.merged == 0
    list(syncer.grace_over(GraceOver(0, 1)))
    assert (syncer.merged, syncer.changes) == (1, 2)
