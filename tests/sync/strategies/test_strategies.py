"""Each strategy around an ordinary training loop, compared with the same algorithm by hand over all members' data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from testbed import sync
from testbed.plan import Group, Plan, Tree
from testbed.sync import Average, Nesterov, PowerSgd
from testbed.sync.codecs import Residual
from testbed.sync.session import _check as session_check
from testbed.sync.strategies.diloco import DiLoCo
from testbed.sync.strategies.fragment import cut
from testbed.sync.strategies.gradients import Gradients
from testbed.sync.strategies.local_sgd import LocalSgd, PostLocalSgd
from testbed.sync.strategies.strategy import Reducer, Strategy
from tests.sync.plans import chain, names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import by_mean_gradient, flat, model, step

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
STEPS = 12

Make = Callable[[sync.Session, nn.Module, torch.optim.Optimizer], Strategy]


def train(directory: Path, make: Make, steps: int = STEPS, plan: Plan = PLAN) -> dict[str, tuple[torch.Tensor, int]]:
    """Train at all members. Returns each member's parameters, and the number of rounds."""

    def work(session: sync.Session) -> tuple[torch.Tensor, int]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with make(session, net, optimizer):
            for number in range(steps):
                step(net, optimizer, session.name, number)
        return flat(net), session.rounds

    return run(directory, plan, work)


def agreed(results: Mapping[str, tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, int]:
    """Assert that all members ended with the same bits. Returns the parameters and the number of rounds."""
    parameters, rounds = next(iter(results.values()))
    assert all(torch.equal(parameters, other) and rounds == same for other, same in results.values())
    return parameters, rounds


def by_hand(every: int, outer: sync.Outer, steps: int = STEPS) -> torch.Tensor:
    """Take local steps for each member in turn, and the outer step by the mean of their changes."""
    anchor, momentum = flat(model()), torch.zeros_like(flat(model()))
    nets = {member: model() for member in MEMBERS}
    for first in range(0, steps, every):
        for member, net in nets.items():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for number in range(first, first + every):
                step(net, optimizer, member, number)
        change = anchor - torch.stack([flat(net) for net in nets.values()]).mean(0)
        outer.step(anchor, change, momentum)
        for net in nets.values():
            nn.utils.vector_to_parameters(anchor.clone(), net.parameters())
    return anchor


@pytest.mark.local
def test_gradients_are_those_of_all_data(tmp_path: Path) -> None:
    weights = {"m0": 1.0, "m1": 2.0, "m2": 5.0}
    parameters, rounds = agreed(train(tmp_path, lambda s, net, opt: s.gradients(net, opt, weights[s.name])))
    torch.testing.assert_close(parameters, by_mean_gradient(STEPS, weights), atol=1e-6, rtol=1e-5)
    assert rounds == STEPS


@pytest.mark.local
@pytest.mark.parametrize("every", [1, 4])
def test_local_sgd_averages_parameters(tmp_path: Path, every: int) -> None:
    parameters, rounds = agreed(train(tmp_path, lambda s, net, opt: s.local_sgd(net, opt, every)))
    torch.testing.assert_close(parameters, by_hand(every, Average()), atol=1e-6, rtol=1e-5)
    assert rounds == STEPS // every


@pytest.mark.local
def test_diloco_takes_nesterov_steps(tmp_path: Path) -> None:
    parameters, rounds = agreed(train(tmp_path, lambda s, net, opt: s.diloco(net, opt, 4)))
    torch.testing.assert_close(parameters, by_hand(4, Nesterov(0.7, 0.9)), atol=1e-6, rtol=1e-5)
    assert rounds == 3


@pytest.mark.pure
def test_nesterov_is_pytorchs() -> None:
    draw = torch.Generator().manual_seed(1)
    values = torch.nn.Parameter(torch.randn(50, generator=draw))
    theirs = torch.optim.SGD([values], lr=0.7, momentum=0.9, nesterov=True)
    ours, momentum = values.detach().clone(), torch.zeros(50)
    for _ in range(10):
        change = torch.randn(50, generator=draw)
        Nesterov().step(ours, change, momentum)
        values.grad = change.clone()
        theirs.step()
    torch.testing.assert_close(ours, values.detach())


@pytest.mark.pure
@pytest.mark.parametrize("rate", [0.0, float("nan"), float("inf")])
def test_a_learning_rate_that_makes_no_sense(rate: float) -> None:
    with pytest.raises(ValueError, match="learning rate"):
        Nesterov(rate)


@pytest.mark.local
def test_post_local_sgd_is_gradients_then_local(tmp_path: Path) -> None:
    parameters, rounds = agreed(train(tmp_path, lambda s, net, opt: s.post_local_sgd(net, opt, start=4, every=4)))
    assert rounds == 4 + 2
    alone = by_mean_gradient(4, dict.fromkeys(MEMBERS, 1.0))
    nets = {member: copy.deepcopy(model()) for member in MEMBERS}
    for first in (4, 8):
        for member, net in nets.items():
            nn.utils.vector_to_parameters(alone.clone(), net.parameters())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for number in range(first, first + 4):
                step(net, optimizer, member, number)
        alone = torch.stack([flat(net) for net in nets.values()]).mean(0)
    torch.testing.assert_close(parameters, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.local
@pytest.mark.parametrize(("fragments", "delay"), [(2, 0), (3, 0), (2, 1), (3, 5)])
def test_streamed_fragments_end_agreed(tmp_path: Path, fragments: int, delay: int) -> None:
    """There is a round for each fragment and period, and one more for each fragment but the last one sent."""
    parameters, rounds = agreed(
        train(tmp_path, lambda s, net, opt: s.diloco(net, opt, 6, fragments=fragments, delay=delay))
    )
    assert rounds == 2 * fragments + fragments - 1
    assert parameters.isfinite().all()


@pytest.mark.local
def test_a_delayed_fragment_is_mixed_in_at_its_step(tmp_path: Path) -> None:
    """By hand: the change up to step 4 moves the anchor at step 6, and the parameters by half of it."""

    def work(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with DiLoCo(session, list(net.parameters()), optimizer, 4, Average(), delay=2):
            for number in range(6):
                step(net, optimizer, session.name, number)
            return flat(net)

    results = run(tmp_path, PLAN, work)
    nets = {member: model() for member in MEMBERS}
    at_four, at_six = [], {}
    for member, net in nets.items():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(6):
            step(net, optimizer, member, number)
            if number == 3:
                at_four.append(flat(net))
        at_six[member] = flat(net)
    mean = torch.stack(at_four).mean(0)
    for member, result in results.items():
        torch.testing.assert_close(result, (mean + at_six[member]) / 2, atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_powersgd_at_full_rank_is_exact_and_low_rank_owes_the_rest(tmp_path: Path) -> None:
    def work(session: sync.Session) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        compressor = PowerSgd(2)
        draw = torch.Generator().manual_seed(int(session.name[1:]))
        put_in, came_out = torch.zeros(20, 30), torch.zeros(20, 30)
        for _ in range(5):
            gradient, bias = torch.randn(20, 30, generator=draw), torch.ones(7)
            put_in += gradient
            compressor.reduce(session, [gradient, bias], 1.0)
            came_out += gradient
            assert torch.equal(bias, torch.ones(7))
        assert torch.linalg.matrix_rank(gradient) == 2
        return put_in, came_out, compressor.state_dict()["residuals"][0]

    results = run(tmp_path, PLAN, work)
    outs = [came_out for _, came_out, _ in results.values()]
    assert all(torch.equal(outs[0], other) for other in outs)
    put_in = sum(one for one, _, _ in results.values())
    owed = sum(one for _, _, one in results.values())
    torch.testing.assert_close(put_in, 3 * outs[0] + owed, atol=1e-4, rtol=1e-4)


@pytest.mark.local
def test_powersgd_trains(tmp_path: Path) -> None:
    parameters, rounds = agreed(train(tmp_path, lambda s, net, opt: s.gradients(net, opt, powersgd=PowerSgd(2))))
    assert rounds == 2 * STEPS
    exact = by_mean_gradient(STEPS, dict.fromkeys(MEMBERS, 1.0))
    start = flat(model())
    assert (parameters - exact).norm() < 0.5 * (exact - start).norm()


@pytest.mark.pure
@pytest.mark.parametrize(("rank", "rounds", "steps"), [(1, 6, 3), (1, 7, 4), (9, 6, 6)])
def test_powersgd_has_a_second_round_where_some_matrix_gains_by_it(rank: int, rounds: int, steps: int) -> None:
    """At rank 9 the factors of this matrix have 666 numbers, more than its 640."""
    nobody = cast(Reducer, None)  # no round begins
    gradients = Gradients(nobody, [torch.zeros(10), torch.zeros(10, 64)], powersgd=PowerSgd(rank))
    assert gradients.over(rounds, steps) and not gradients.over(rounds, steps - 1)


@pytest.mark.pure
def test_powersgd_has_nothing_to_gain_by_a_matrix_without_elements() -> None:
    gradients = Gradients(cast(Reducer, None), [torch.zeros(0, 64)], powersgd=PowerSgd(1))
    assert gradients.over(6, 6) and not gradients.over(6, 5)


class Alone:
    """The reducer of a single member, which refuses the tensors that a session refuses."""

    whole = True

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None) -> Alone:
        session_check(tensor, weight, residual)
        return self


@pytest.mark.pure
@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tensors", [1, 2])
def test_gradients_of_other_types_travel_as_float32(tensors: int, dtype: torch.dtype, rank: int | None) -> None:
    parameters = [torch.zeros(8, 9, dtype=dtype, requires_grad=True) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    powersgd = PowerSgd(rank) if rank else None
    Gradients(cast(Reducer, Alone()), parameters, powersgd=powersgd).before_step()
    for parameter in parameters:
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 2.0), atol=1e-5, rtol=1e-5)


@pytest.mark.pure
@pytest.mark.parametrize("rank", [None, 1])
def test_sparse_gradients_are_refused_with_a_remedy(rank: int | None) -> None:
    embedding = nn.Embedding(40, 8, sparse=True)
    embedding(torch.tensor([3])).sum().backward()
    gradients = Gradients(
        cast(Reducer, Alone()), list(embedding.parameters()), powersgd=PowerSgd(rank) if rank else None
    )
    with pytest.raises(ValueError, match="sparse=False"):
        gradients.before_step()


@pytest.mark.local
@pytest.mark.parametrize("rank", [None, 1])
def test_gradients_of_channels_last_are_those_of_other_layouts(tmp_path: Path, rank: int | None) -> None:
    def work(session: sync.Session) -> list[torch.Tensor]:
        weights = []
        for layout in (torch.contiguous_format, torch.channels_last):
            draw = torch.Generator().manual_seed(int(session.name[1:]))
            net = nn.Conv2d(8, 16, 3, bias=False)
            nn.init.constant_(net.weight, 1.0)
            net.weight.data = net.weight.data.contiguous(memory_format=layout)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with session.gradients(net, optimizer, powersgd=PowerSgd(rank) if rank else None):
                net(torch.randn(2, 8, 5, 5, generator=draw)).square().mean().backward()
                assert net.weight.grad is not None and net.weight.grad.is_contiguous(memory_format=layout)
                optimizer.step()
            weights.append(net.weight.detach().contiguous())
        return weights

    for there, here in run(tmp_path, PLAN, work).values():
        torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)


@pytest.mark.local
@pytest.mark.parametrize("rank", [None, 1])
def test_frozen_parameters_stay_where_they_are(tmp_path: Path, rank: int | None) -> None:
    def work(session: sync.Session) -> bool:
        net = model()
        frozen = next(net.parameters()).requires_grad_(False)
        before = frozen.clone()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
        with session.gradients(net, optimizer, powersgd=PowerSgd(rank) if rank else None):
            for number in range(2):
                step(net, optimizer, session.name, number)
        return torch.equal(frozen, before)

    assert all(run(tmp_path, PLAN, work).values())


@pytest.mark.pure
def test_a_member_that_joins_starts_without_the_residuals_of_its_source() -> None:
    """The source keeps its residuals. If the new member had them too, they would be added twice."""
    parameters = list(model().parameters())
    left_out = torch.ones(sum(parameter.numel() for parameter in parameters))
    nobody = cast(Reducer, None)  # no round begins
    local = PostLocalSgd(nobody, parameters)
    state = local.state_dict()
    state["gradients"]["residual"] = state["local"]["fragments"][0]["residual"] = left_out
    local.load_state_dict(state)
    handed_over = local.handover()
    assert handed_over["gradients"]["residual"] is None
    assert handed_over["local"]["fragments"][0]["residual"] is None
    assert torch.equal(local.state_dict()["gradients"]["residual"], left_out)


@pytest.mark.local
def test_the_hooks_are_gone_afterwards(tmp_path: Path) -> None:
    def work(session: sync.Session) -> int:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with session.gradients(net, optimizer):
            step(net, optimizer, session.name, 0)
        step(net, optimizer, session.name, 1)
        return session.rounds

    assert set(run(tmp_path, PLAN, work).values()) == {1}


@pytest.mark.local
def test_a_failing_round_comes_out_of_the_step_and_names_peer_epoch_and_round(tmp_path: Path) -> None:
    """The second round fails: in the first one all members must connect to the member that leaves."""

    def work(session: sync.Session) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        leaves = session.name == "m2"
        failing = nullcontext() if leaves else pytest.raises(sync.SyncError)
        with failing as caught, session.local_sgd(net, optimizer, 2):
            for number in range(2 if leaves else 4):
                step(net, optimizer, session.name, number)
        if caught is not None:
            assert (caught.value.member, caught.value.round, caught.value.epoch) == ("m2", 2, 4)

    run(tmp_path, Plan(4, MEMBERS, (star(MEMBERS, "m2"),)), work)


@pytest.mark.pure
@pytest.mark.parametrize("seed", range(20))
def test_fragments_are_of_about_equal_size_and_in_order(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 100, (int(torch.randint(1, 30, (1,), generator=draw)),), generator=draw).tolist()
    parameters = [torch.empty(size) for size in sizes]
    for parts in range(1, len(sizes) + 1):
        runs = cut(parameters, parts)
        assert len(runs) == parts and all(runs)
        assert [id(p) for part in runs for p in part] == [id(p) for p in parameters]
        assert max(sum(p.numel() for p in part) for part in runs) <= sum(sizes) / parts + 2 * max(sizes)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("every", "streaming", "said"),
    [
        (0, {}, "every="),
        (6, {"fragments": 4}, "fragments="),
        (4, {"delay": 4}, "delay="),
        (8, {"fragments": 8}, "8 fr"),
    ],
)
def test_options_that_make_no_sense(every: int, streaming: dict[str, Any], said: str) -> None:
    parameters: Any = list(model().parameters())
    with pytest.raises(ValueError, match=said):
        DiLoCo(None, parameters, every=every, **streaming)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every="):
        LocalSgd(None, parameters, every=0)  # type: ignore[arg-type]


@pytest.mark.local
def test_groups_average_among_themselves_and_all_at_times(tmp_path: Path) -> None:
    """By hand: two rounds of two steps each, the first inside groups, the second among all."""
    members = names(4)
    groups = (members[:2], members[2:])
    plan = Plan(
        0,
        members,
        (star(members, "m1"),),
        groups=tuple(Group(group, (star(group, group[0]),)) for group in groups),
        period=2,
    )

    def work(session: sync.Session) -> list[torch.Tensor]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        after = []
        with session.local_sgd(net, optimizer, 2):
            for number in range(5):
                step(net, optimizer, session.name, number)
                after.append(flat(net))
        return [after[1], after[3], flat(net)]

    results = run(tmp_path, plan, work)
    nets = {member: model() for member in members}
    for first, parties in ((0, groups), (2, (members,))):
        for member, net in nets.items():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for number in range(first, first + 2):
                step(net, optimizer, member, number)
        for party in parties:
            mean = torch.stack([flat(nets[member]) for member in party]).mean(0)
            for member in party:
                nn.utils.vector_to_parameters(mean.clone(), nets[member].parameters())
        for member, after in results.items():
            torch.testing.assert_close(after[first // 2], flat(nets[member]), atol=1e-6, rtol=1e-5)
    assert all(torch.equal(results["m0"][2], after[2]) for after in results.values()), "settled among all"
    assert not torch.equal(results["m0"][0], results["m2"][0])


@pytest.mark.local
def test_gradients_refuse_a_plan_with_groups(tmp_path: Path) -> None:
    members = names(2)
    alone = tuple(Group((member,), (Tree(member, {}, {}),)) for member in members)
    plan = Plan(0, members, (chain(members),), groups=alone, period=2)

    def work(session: sync.Session) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(sync.SyncError) as caught:
            with session.gradients(net, optimizer):
                step(net, optimizer, session.name, 0)
        assert (caught.value.rule, caught.value.round, caught.value.epoch) == ("groups", 1, 0)

    run(tmp_path, plan, work)
