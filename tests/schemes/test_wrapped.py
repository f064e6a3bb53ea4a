"""`schemes.wrap` around usual training loops: the same as the scheme itself, or refused with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from testbed import schemes, sync
from testbed.plan import Group, Plan
from testbed.schemes.options import Misfit
from testbed.schemes.sparta import Sparta, SpartaOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Strategy
from testbed.sync.strategies import Gradients
from testbed.sync.strategies.optimizer_steps import OptimizerSteps
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, star
from tests.sync.sessions import run, run_with
from tests.sync.strategies.training import around, batch, flat, model, sgd, step

MEMBERS = names(2)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
STEPS = 8

Around = Callable[[sync.Session, nn.Module, torch.optim.Optimizer], Any]
Loop = Callable[[nn.Module, torch.optim.Optimizer, str], None]


def plain(net: nn.Module, optimizer: torch.optim.Optimizer, member: str) -> None:
    for number in range(STEPS):
        step(net, optimizer, member, number)


def accumulating(net: nn.Module, optimizer: torch.optim.Optimizer, member: str) -> None:
    """Train with two batches to a step, clipping, and a falling learning rate."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for number in range(2 * STEPS):
        inputs, targets = batch(member, number)
        (net(inputs) - targets).square().mean().div(2).backward()
        if number % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


def train(directory: Path, around: Around, loop: Loop = plain) -> torch.Tensor:
    """Return both members' parameters at the end, which are the same bits."""

    def work(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        with around(session, net, optimizer):
            loop(net, optimizer, session.name)
        return flat(net)

    directory.mkdir()
    one, other = run(directory, PLAN, work).values()
    assert torch.equal(one, other)
    return one


def sparta(session: sync.Session, net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return around(Sparta(RoundTraining(session, list(net.parameters()), 1.0), SpartaOptions(share=0.1)), optimizer)


@pytest.mark.local
@pytest.mark.parametrize(
    ("scheme", "options", "by_its_own_name"),
    [
        ("gradients", {}, lambda s, net, opt: s.gradients(net, opt)),
        ("local_sgd", {"every": 3}, lambda s, net, opt: s.local_sgd(net, opt, 3)),
        ("post_local_sgd", {"start": 2, "every": 3}, lambda s, net, opt: s.post_local_sgd(net, opt, 2, 3)),
        (
            "diloco",
            {"every": 4, "fragments": 2, "delay": 1},
            lambda s, net, opt: s.diloco(net, opt, 4, fragments=2, delay=1),
        ),
        ("sparta", {"share": 0.1}, sparta),
    ],
)
def test_it_is_the_scheme_bit_for_bit(
    tmp_path: Path, scheme: str, options: dict[str, Any], by_its_own_name: Around
) -> None:
    wrapped = train(tmp_path / "a", lambda s, net, opt: schemes.wrap(net, opt, scheme, session=s, **options))
    assert torch.equal(wrapped, train(tmp_path / "b", by_its_own_name))


@pytest.mark.local
def test_gradients_may_be_accumulated_and_clipped_and_the_learning_rate_fall(tmp_path: Path) -> None:
    wrapped = train(tmp_path / "a", lambda s, net, opt: schemes.wrap(net, opt, session=s, every=4), accumulating)
    assert torch.equal(wrapped, train(tmp_path / "b", lambda s, net, opt: s.diloco(net, opt, 4), accumulating))


@pytest.mark.local
def test_several_optimizers_step_in_turn(tmp_path: Path) -> None:
    """Each half of the model has its own optimizer, with the same result as one for both."""

    def halves(session: sync.Session) -> torch.Tensor:
        net = model()
        parameters = list(net.parameters())
        optimizers = [torch.optim.AdamW(part, lr=0.01) for part in (parameters[:2], parameters[2:])]
        with schemes.wrap(net, optimizers, "local_sgd", session=session, every=3):
            for number in range(STEPS):
                inputs, targets = batch(session.name, number)
                net.zero_grad()
                (net(inputs) - targets).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
        return flat(net)

    (tmp_path / "a").mkdir()
    parameters = run(tmp_path / "a", PLAN, halves)["m0"]
    assert torch.equal(parameters, train(tmp_path / "b", lambda s, net, opt: s.local_sgd(net, opt, 3)))


@pytest.mark.local
@pytest.mark.parametrize("by_its_own_name", [False, True])
def test_a_step_that_a_scaler_leaves_out_counts(tmp_path: Path, by_its_own_name: bool) -> None:
    """One member's gradients overflow in its first step: it takes as many rounds as the other."""

    def scaled(session: sync.Session) -> tuple[torch.Tensor, int]:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120 if session.name == "m0" else 2.0)
        wrapped = schemes.wrap(net, optimizer, "local_sgd", session=session, every=2)
        with session.local_sgd(net, optimizer, 2) if by_its_own_name else wrapped:
            for number in range(STEPS):
                inputs, targets = batch(session.name, number)
                optimizer.zero_grad()
                scaler.scale((net(inputs) - targets).square().mean() * 1e10).backward()
                scaler.step(optimizer)
                scaler.update()
        assert (scaler.get_scale() < 2.0**120) if session.name == "m0" else (scaler.get_scale() == 2.0)
        return flat(net), session.rounds

    (one, rounds), (other, same) = run(tmp_path, PLAN, scaled).values()
    assert torch.equal(one, other) and rounds == same


@pytest.mark.local
def test_members_that_do_not_begin_alike_are_told(tmp_path: Path) -> None:
    def work(session: sync.Session) -> str:
        net = model()
        with torch.no_grad():
            next(net.parameters()).view(-1)[0] += session.name == "m1"
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(sync.SyncError) as caught, schemes.wrap(net, optimizer, session=session):
            pass
        return str(caught.value)

    for member, said in run(tmp_path, PLAN, work).items():
        assert member in said and "torch.manual_seed" in said


GROUPED = Plan(
    0,
    MEMBERS,
    (chain(MEMBERS),),
    groups=tuple(Group((member,), (chain((member,)),)) for member in MEMBERS),
    period=2,
)


@pytest.mark.local
@pytest.mark.parametrize(
    ("scheme", "plan", "name"),
    [
        ("hierarchical", PLAN, "period"),
        ("gradients", GROUPED, "policy"),
    ],
)
def test_a_plan_that_is_not_for_the_scheme_is_refused(scheme: str, plan: Plan, name: str, tmp_path: Path) -> None:
    def work(session: sync.Session) -> None:
        net = model()
        with schemes.wrap(net, sgd(net), scheme, session=session):
            pass

    with pytest.raises(Misfit) as caught:
        run(tmp_path, plan, work)
    assert caught.value.name == name


@pytest.mark.local
@pytest.mark.parametrize(("name", "own"), [("muloco", "Muon"), ("des_loc", "adamw")])
def test_an_optimizer_in_place_of_the_scheme_s_own_is_refused(name: str, own: str, tmp_path: Path) -> None:
    def work(session: sync.Session) -> None:
        net = model()
        with schemes.wrap(net, torch.optim.RMSprop(net.parameters()), name, session=session):
            pass

    with pytest.raises(Misfit, match=own) as caught:
        run(tmp_path, PLAN, work)
    assert caught.value.name == "optimizer"


@pytest.mark.local
def test_an_elastic_session_is_refused_where_a_step_has_two_rounds(tmp_path: Path) -> None:
    def work(session: sync.Session) -> None:
        net = model()
        with schemes.wrap(net, sgd(net), "sparseloco", session=session):
            pass

    with Controller(tmp_path, PLAN, job()) as controller:
        controller.lease_s = 60.0
        with pytest.raises(Misfit, match="clip: false") as caught:
            run_with(controller, work)
    assert caught.value.name == "clip"


@pytest.mark.local
def test_under_a_plan_with_groups_members_end_alike(tmp_path: Path) -> None:
    def work(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with schemes.wrap(net, optimizer, "hierarchical", session=session, every=2, period=2):
            plain(net, optimizer, session.name)
        return flat(net)

    one, other = run(tmp_path, GROUPED, work).values()
    assert torch.equal(one, other)


def refused(net: nn.Module, optimizer: Any, scheme: str = "diloco", **options: Any) -> str:
    with pytest.raises((ValueError, sync.SyncError)) as caught, schemes.wrap(net, optimizer, scheme, **options):
        pass
    return str(caught.value)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        ("hop", {}, "^hop: .*gradients, local_sgd"),
        ("dilico", {}, "dilico"),
        ("diloco", {"evry": 8}, "^evry: .*every, fragments"),
        ("diloco", {"every": 8.5}, "every: "),
        ("diloco", {"outer": {"momentum": "much"}}, "momentum: "),
        ("hybrid", {"normalise": 1}, "normalise: "),
        ("diloco", {"outer": 3}, "outer: "),
    ],
)
def test_what_is_no_scheme_or_no_option_of_it(scheme: str, options: dict[str, Any], said: str) -> None:
    net = model()
    with pytest.raises(ValueError, match=said), schemes.wrap(net, sgd(net), scheme, **options):
        pass


@pytest.mark.pure
def test_a_model_or_an_optimizer_that_a_scheme_can_t_be_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_CONTROLLER", raising=False)
    net = model()
    assert "torch.optim.Optimizer" in refused(net, [object()])
    assert "optimizer" in refused(net.requires_grad_(False), [])
    assert "optimizer" in refused(model(), [])
    assert "TESTBED_CONTROLLER=tcp:HOST:PORT" in refused(model(), sgd(model()))
    elsewhere = copy.deepcopy(model())
    elsewhere[0].to("meta")
    assert "cpu, meta" in refused(elsewhere, sgd(elsewhere))
    sharded = model()
    next(sharded.parameters())._is_flat_param = True  # type: ignore[attr-defined]  # as FSDP marks its own
    assert "(FSDP, DTensor)" in refused(sharded, sgd(sharded))
    complex_ = nn.Linear(2, 2, dtype=torch.complex64)
    assert "torch.complex64" in refused(complex_, sgd(complex_))


@pytest.mark.pure
def test_a_scheme_that_averages_gradients_refuses_steps_that_it_can_t_be_before() -> None:
    net = model()
    optimizer = sgd(net)
    gradients = Gradients(_Alone(), list(net.parameters()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="local_sgd"):
        OptimizerSteps(gradients, [optimizer, sgd(net)])
    with OptimizerSteps(gradients, [optimizer]).counted():
        with pytest.raises(ValueError, match="closure"):
            optimizer.step(lambda: 0.0)
        scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(ValueError, match="GradScaler"):
            scaler.step(optimizer)
    optimizer.step(lambda: 0.0)  # and afterwards all is as it was
    with pytest.raises(ValueError, match="closure"), Gradients(_Alone(), list(net.parameters()), optimizer):  # type: ignore[arg-type]
        optimizer.step(lambda: 0.0)


class _Alone:
    """A reducer that must not be asked."""


@pytest.mark.pure
def test_optimizers_that_do_not_step_in_turn_are_told() -> None:
    net = model()
    one, other = sgd(net), sgd(net)
    with OptimizerSteps(_Nothing(None, 1.0), [one, other]).counted():
        one.step()
        other.step()
        other.step()
        with pytest.raises(ValueError, match="optimizer"):
            other.step()


@pytest.mark.pure
def test_parameters_that_are_trained_from_later_on_are_told() -> None:
    net = model()
    first, *others = net.parameters()
    first.requires_grad_(False)
    optimizer = torch.optim.SGD([first, others[0]], lr=0.1)
    with OptimizerSteps(_Nothing(None, 1.0), [optimizer]).counted():
        optimizer.step()
        first.requires_grad_(True)
        with pytest.raises(ValueError, match=r"1 .* 2"):
            optimizer.step()
        others[0].requires_grad_(False)
        with pytest.raises(ValueError, match=r"1 .* 1, .* 1 are others"):
            optimizer.step()
    with _Nothing(optimizer, 1.0):  # as the methods of a session do, which synchronize all of a model's tensors
        optimizer.step()
        others[0].requires_grad_(True)
        optimizer.step()


class _Nothing(Strategy):
    def over(self, rounds: int, taken: int) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: object) -> None:
        pass


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.local
@pytest.mark.usefixtures("process_group")
def test_ddp_exchanges_nothing_inside_and_again_afterwards(tmp_path: Path) -> None:
    """Buffers stay local, too: running means are each member's own."""
    plan = Plan(0, ("m0",), (chain(("m0",)),))
    net = nn.Sequential(model(), nn.BatchNorm1d(1))
    ddp = DistributedDataParallel(net)
    optimizer = sgd(ddp)

    def work(session: sync.Session) -> None:
        with schemes.wrap(ddp, optimizer, "local_sgd", session=session, every=2):
            assert not ddp.broadcast_buffers
            plain(ddp, optimizer, "m0")
        assert ddp.broadcast_buffers
        plain(ddp, optimizer, "m0")
        assert "register_comm_hook" in refused(ddp, optimizer, session=session)

    run(tmp_path, plan, work)
    alone = nn.Sequential(model(), nn.BatchNorm1d(1))
    for _ in range(2):
        plain(alone, sgd(alone), "m0")
    torch.testing.assert_close(flat(alone), flat(ddp), atol=1e-6, rtol=1e-5)


@pytest.mark.pure
@pytest.mark.usefixtures("process_group")
def test_an_optimizer_that_exchanges_parameters_itself() -> None:
    net = model()
    zero = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    assert "ZeroRedundancyOptimizer" in refused(net, zero)


@pytest.mark.pure
def test_the_old_name_says_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"`schemes\.wrap`"):
        sync.wrap(nn.Linear(1, 1), None)
