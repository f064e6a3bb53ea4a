"""Groups `wan` of ranks with tensors on a GPU, which they may share. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.sync.c10d.ranks import Ranks
from tests.sync.c10d.test_collectives import groups

pytestmark = [pytest.mark.local, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

LARGE = 4_000_000


def sums_beside_what_the_device_computes(rank: int) -> None:
    """Reduce a tensor that a stream of the caller makes; later work on that stream does not wait for the result."""
    device, stream = torch.device("cuda", 0), torch.cuda.Stream(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        with torch.cuda.stream(stream):
            heavy = torch.randn(3000, 3000, device=device)
            for _ in range(20):
                heavy = heavy @ heavy
                heavy /= heavy.norm()
            values = torch.full((LARGE,), rank + 1.0, device=device, dtype=dtype) + 0 * heavy[0, 0].to(dtype)
            work = dist.all_reduce(values, async_op=True)
            assert work is not None
            work.wait()
            doubled = values * 2
        stream.synchronize()
        assert doubled.unique().tolist() == [6], dtype


def trains_as_over_gloo(rank: int) -> None:
    found = []
    for group in groups("world"):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(
            nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500)).cuda(), process_group=group
        )
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(4):
            numbers = torch.Generator().manual_seed(10 * step + rank)
            optimizer.zero_grad()
            ddp(torch.randn(8, 500, generator=numbers).cuda()).square().mean().backward()
            optimizer.step()
        found.append(torch.cat([parameter.detach().view(-1) for parameter in ddp.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_two_ranks() -> None:
    with Ranks(2) as ranks:
        ranks.do(sums_beside_what_the_device_computes)
        ranks.do(trains_as_over_gloo)
