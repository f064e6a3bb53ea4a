"""A shard at its owner: it sums the rounds of its group, and takes in exchanges."""

from __future__ import annotations

import pytest
import torch

from testbed.schemes.staggered.rules import StaggeredRules, Team
from testbed.schemes.staggered.shards import OwnedShard
from testbed.sync.codecs import by_name

pytestmark = pytest.mark.pure


def shard(codec: str) -> OwnedShard:
    names = ("a", "b")
    teams = (Team(("a",), ("a",)), Team(("b",), ("b",)))
    rules = StaggeredRules(teams, 1, dict.fromkeys(names, 1), dict.fromkeys(names, 1.0), codec=by_name(codec))
    return OwnedShard(rules, 4, torch.zeros(2))


def test_what_the_codec_leaves_out_comes_with_the_next_move() -> None:
    """Moves that are too small for 8 significant bits beside larger ones must not be lost."""
    owned, sent, change = shard("bf16"), torch.zeros(2), torch.full((2,), 1 + 2.0**-10)
    for number in range(1, 9):
        owned.add([change])
        moved = owned.move(number)
        assert number > 1 or moved.tolist() == [1.0, 1.0]
        sent += moved
        owned.put(number, 4, sent)
    assert sent.tolist() == pytest.approx([8 + 8 * 2.0**-10] * 2, abs=2.0**-8)


def test_an_exchange_is_over_when_all_elements_are_back() -> None:
    owned = shard("fp32")
    owned.add([torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])])
    assert owned.move(3).tolist() == [11.0, 22.0] and owned.awaits
    with pytest.raises(ValueError, match=r"5.* 2"):
        owned.put(2, 5, torch.zeros(1))
    owned.put(3, 5, torch.tensor([5.0]))
    assert owned.awaits
    owned.put(3, 4, torch.tensor([6.0]))
    assert not owned.awaits and owned.values.tolist() == [6.0, 5.0]
    owned.add([torch.tensor([1.0, 1.0])])
    assert owned.move(4).tolist() == [1.0, 1.0], "from where the last exchange left it"
