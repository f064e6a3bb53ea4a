"""PyTorch's ways of training reach the same parameters over a group `wan` as over gloo."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from testbed.plan import Plan
from testbed.protocol import Held
from tests.sync.c10d.ranks import Ranks
from tests.sync.c10d.test_collectives import groups
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names

pytestmark = pytest.mark.local

#: A layer has 160 KiB of weights: one bucket each, which the session reduces.
WIDTH = 200
STEPS = 4
#: Six digits of float32, because each step begins with the rounding errors of the ones before.
TOLERANCE = 1e-5


class Forked(nn.Module):
    """Three layers, of which every other batch skips the second."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: torch.Tensor, skips: bool = False) -> torch.Tensor:
        hidden = self.first(inputs).relu()
        return self.last(hidden if skips else self.second(hidden).relu())


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, WIDTH, generator=numbers)
    return inputs, inputs.flip(1)


def loss_of(model: nn.Module, rank: int, step: int, *more: bool) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    loss: torch.Tensor = (model(inputs, *more) - targets).square().mean()
    return loss


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([getattr(p, "full_tensor", lambda p=p: p)().detach().view(-1) for p in model.parameters()])


def by_ddp(rank: int, group: dist.ProcessGroup, variant: str) -> torch.Tensor:
    model = Forked(rank if variant == "plain" else 0)
    options: dict[str, Any] = {
        "plain": {},
        "views": {"gradient_as_bucket_view": True},
        "without init_sync": {"init_sync": False},
        "unused parameters": {"find_unused_parameters": True},
        "no_sync": {},
        "zero": {},
    }[variant]
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.1, **options)
    if variant == "zero":
        optimizer: Any = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, group, lr=0.1)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync() if variant == "no_sync" else nullcontext():
            if variant == "no_sync":
                loss_of(ddp, rank, step + 50).backward()
        loss_of(ddp, rank, step, *([step % 2 == 1] if variant == "unused parameters" else [])).backward()
        optimizer.step()
    return values(model)


def by_fully_shard(rank: int, mesh: DeviceMesh) -> torch.Tensor:
    model = Forked(0)
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return values(model)


#: The models and optimizers of trainings that a rank continues, by wrapper and training.
UNDER_WAY: dict[tuple[str, str], tuple[nn.Module, torch.optim.Optimizer]] = {}


def more_steps(rank: int, held: str, first: int, name: str) -> torch.Tensor:
    if (held, name) not in UNDER_WAY:
        model = by_two_sites(Forked(0)) if held == "shards" else DistributedDataParallel(Forked(0), bucket_cap_mb=0.1)
        UNDER_WAY[held, name] = model, torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = UNDER_WAY[held, name]
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return values(model)


def by_two_sites(model: Forked) -> nn.Module:
    """FSDP2 keeps copies of the model at two sites of one rank each, so the whole group reduces between copies."""
    own = [dist.new_group([rank], backend="gloo") for rank in range(2)][dist.get_rank()]
    groups = [dist.group.WORLD, own]
    mesh = DeviceMesh.from_group(groups, "cpu", [[0], [1]], mesh_dim_names=("site", "worker"))  # type: ignore[arg-type]
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer, mesh=mesh)
    return model


def ddp_by_both(rank: int, variant: str) -> None:
    ours, theirs = (by_ddp(rank, group, variant) for group in groups("world") if group is not None)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def fully_shard_by_both(rank: int) -> None:
    meshes = (DeviceMesh.from_group(group, "cpu") for group in groups("world") if group is not None)
    ours, theirs = (by_fully_shard(rank, mesh) for mesh in meshes)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def hybrid_by_both(rank: int) -> list[str]:
    found, backends = [], []
    for between in ("wan", "gloo"):
        mesh = init_device_mesh(
            "cpu",
            (2, dist.get_world_size() // 2),
            mesh_dim_names=("site", "worker"),
            backend_override={"site": between, "worker": "gloo"},
        )
        backends.append(dist.get_backend(mesh["site"].get_group()))
        found.append(by_fully_shard(rank, mesh))
    torch.testing.assert_close(*found, rtol=TOLERANCE, atol=TOLERANCE)
    return backends


@pytest.mark.parametrize("variant", ["plain", "views", "without init_sync", "unused parameters", "no_sync", "zero"])
def test_ddp(four: Ranks, variant: str) -> None:
    four.do(ddp_by_both, variant)


def test_fully_shard(four: Ranks) -> None:
    four.do(fully_shard_by_both)


@pytest.mark.parametrize("held", ["whole", "shards"])
def test_plans_are_swapped_between_steps(tmp_path: Path, held: str) -> None:
    """Both halves of the steps reach the same bits as under one plan: a sum of two values does not depend on order."""
    members = names(2)
    other = Plan(1, members, (chain(members[::-1]),), chunk_bytes=16 * 1024)
    with Controller(tmp_path, Plan(0, members, (chain(members),)), job(10**6)) as controller:
        with Ranks(2, controller.address) as ranks:
            expected = [ranks.do(more_steps, held, first, "one plan") for first in (0, STEPS)][-1]
            ranks.do(more_steps, held, 0, "two plans")
            assert controller.in_force == {0}
            controller.prepare(other)
            controller.await_messages(Held, 2)
            found = ranks.do(more_steps, held, STEPS, "two plans")
        controller.await_condition(lambda: controller.in_force == {0, 1})
    assert all(torch.equal(one, another) for one, another in zip(found, expected, strict=True))


def test_shards_inside_sites_and_copies_between_them(four: Ranks) -> None:
    assert four.do(hybrid_by_both) == [["wan", "gloo"]] * 4
