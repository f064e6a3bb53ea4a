"""Sessions reduce tensors on a GPU like those on the host. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan
from testbed.sync import Residual
from tests.sync.plans import chain, names
from tests.sync.sessions import run
from tests.sync.strategies.training import batch, flat, model

MEMBERS = names(2)

pytestmark = [
    pytest.mark.local,
    pytest.mark.parametrize(
        "device",
        ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))],
    ),
]


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_rounds(tmp_path: Path, device: str, codec: str) -> None:
    def work(session: sync.Session) -> list[torch.Tensor]:
        values = [torch.full((70_000,), float(session.name[1:]) + k, device=device) for k in range(4)]
        works = [session.allreduce(tensor, 1.0, Residual(), async_op=True) for tensor in values]
        return [work.wait().tensor for work in works]

    for means in run(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),), codec=codec), work).values():
        for k, mean in enumerate(means):
            assert mean.device.type == device
            torch.testing.assert_close(mean.cpu(), torch.full((70_000,), 0.5 + k), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["gradients", "powersgd", "diloco"])
def test_strategies_and_checkpoints(tmp_path: Path, device: str, name: str) -> None:
    torch.linalg.qr(torch.eye(2, device=device))  # PyTorch loads CUDA's linear algebra at its first use, on one thread

    def work(session: sync.Session) -> torch.Tensor:
        net = model().to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        powersgd = sync.PowerSgd(2) if name == "powersgd" else None
        strategy = (
            session.diloco(net, optimizer, 4, fragments=2, delay=1)
            if name == "diloco"
            else session.gradients(net, optimizer, powersgd=powersgd)
        )
        file = tmp_path / session.name
        with strategy:
            for number in range(6):
                if number == 3:
                    session.save(file, model=net, optimizer=optimizer, strategy=strategy)
                    sync.load(file).restore(model=net, optimizer=optimizer, strategy=strategy)
                inputs, targets = batch(session.name, number)
                optimizer.zero_grad()
                (net(inputs.to(device)) - targets.to(device)).square().mean().backward()
                optimizer.step()
        return flat(net).cpu()

    one, other = run(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),)), work).values()
    assert torch.equal(one, other)
