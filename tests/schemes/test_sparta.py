"""SPARTA against the same computation by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from testbed.plan import Plan
from testbed.schemes.options import OuterOptions
from testbed.schemes.sparta import Sparta, SpartaOptions, drawn
from testbed.schemes.training import RoundTraining
from tests.sync.plans import names, star
from tests.sync.strategies.training import flat, model, step, trained

pytestmark = pytest.mark.local

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
STEPS = 6


def test_a_default_device_does_not_change_what_is_drawn() -> None:
    values = torch.zeros(2000)
    few, many = drawn(3, 50, values), drawn(3, 1900, values)
    with torch.device("meta"):
        assert torch.equal(drawn(3, 50, values), few) and torch.equal(drawn(3, 1900, values), many)


def train(directory: Path, **options: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Return each member's parameters after its last step and at the end, and the number of rounds."""
    return trained(directory, PLAN, lambda its: Sparta(its, SpartaOptions(**options)), STEPS)


def by_hand(share: float) -> dict[str, torch.Tensor]:
    """Compute each member's parameters after its last step."""
    nets = {member: model() for member in MEMBERS}
    optimizers = {member: torch.optim.SGD(net.parameters(), lr=0.1) for member, net in nets.items()}
    for number in range(STEPS):
        for member, net in nets.items():
            step(net, optimizers[member], member, number)
        at = {member: flat(net) for member, net in nets.items()}
        places = drawn(number + 1, max(1, round(share * len(at["m0"]))), at["m0"])
        mean = torch.stack([values[places] for values in at.values()]).mean(0)
        for member, net in nets.items():
            at[member][places] = mean
            nn.utils.vector_to_parameters(at[member], net.parameters())
    return {member: flat(net) for member, net in nets.items()}


def test_the_drawn_share_is_averaged_after_each_step_and_all_of_it_at_the_end(tmp_path: Path) -> None:
    results, expected = train(tmp_path, share=0.2), by_hand(0.2)
    for member, (last, end, rounds) in results.items():
        torch.testing.assert_close(last, expected[member], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(end, torch.stack(list(expected.values())).mean(0), atol=1e-6, rtol=1e-5)
        assert rounds == STEPS + 1
    assert not torch.equal(results["m0"][0], results["m1"][0])
    assert all(torch.equal(end, results["m0"][1]) for _, end, _ in results.values())


def test_diloco_goes_on_beside_it(tmp_path: Path) -> None:
    results = train(tmp_path, share=0.1, every=3, outer=OuterOptions(learning_rate=1.0, momentum=0.0))
    assert {rounds for *_, rounds in results.values()} == {STEPS + 2}
    assert all(torch.equal(last, end) and torch.equal(end, results["m0"][1]) for last, end, _ in results.values())


def test_places_are_the_same_for_all_and_others_in_each_step() -> None:
    values = torch.zeros(10_000)
    assert torch.equal(drawn(7, 50, values), drawn(7, 50, values))
    assert not torch.equal(drawn(7, 50, values), drawn(8, 50, values))
    seen = torch.cat([drawn(number, 500, values) for number in range(100)])
    assert len(seen.unique()) > 0.98 * len(values)


@pytest.mark.parametrize("count", [2_000, 10_000])
def test_no_place_of_a_large_share_is_drawn_twice(count: int) -> None:
    assert len(drawn(3, count, torch.zeros(10_000)).unique()) == count


@pytest.mark.parametrize(("every", "rounds", "steps"), [(None, 10, 9), (None, 1, 1), (4, 10, 8), (4, 11, 9)])
def test_as_many_steps_as_the_rounds_leave(every: int | None, rounds: int, steps: int) -> None:
    training = RoundTraining(None, [torch.zeros(10)], 1.0)  # type: ignore[arg-type]
    sparta = Sparta(training, SpartaOptions(every=every))
    assert sparta.over(rounds, steps) and not sparta.over(rounds, steps - 1)
