"""The entry point by which PyTorch learns of the backend."""

from __future__ import annotations

import logging
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from testbed import torch_backend

pytestmark = pytest.mark.pure

PROJECT = Path(torch_backend.__file__).parents[1] / "pyproject.toml"


def test_it_is_named_where_pytorch_looks() -> None:
    entries = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["torch.backends"]
    module, _, name = entries["testbed"].partition(":")
    assert getattr(import_module(module), name) is torch_backend.register


def test_the_name_is_known_and_gloo_stays_gloo_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(torch_backend.VARIABLE, raising=False)
    before = dist.init_process_group, dist.new_group
    torch_backend.register()
    assert "wan" in dist.Backend.backend_list
    assert (dist.init_process_group, dist.new_group) == before
    monkeypatch.setenv(torch_backend.VARIABLE, "lan")
    with pytest.raises(ValueError, match="write TESTBED_BACKEND=wan"):
        torch_backend.register()


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("gloo", "wan"),
        ("GLOO", "wan"),
        ("cpu:gloo", "wan"),
        ("wan", "wan"),
        ("nccl", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
    ],
)
def test_what_takes_the_place_of_gloo_is_said(asked: str, got: str, caplog: pytest.LogCaptureFixture) -> None:
    def make(backend: str | None = None, timeout: float = 1.0) -> tuple[str | None, float]:
        return backend, timeout

    caplog.set_level(logging.WARNING)
    assert torch_backend.replacing(make, by_default=False)(asked, timeout=2.0) == (got, 2.0)
    assert bool(caplog.text) == ("gloo" in asked.lower())
    assert torch_backend.replacing(make, by_default=False)() == (None, 1.0), "new groups have the first one's"


def test_the_first_group_is_of_wan_also_where_a_device_mesh_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str | None] = []

    def make(backend: str | None = None) -> None:
        begun.append(backend)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for module in (dist, distributed_c10d, device_mesh):
        for name in ("init_process_group", "new_group"):
            monkeypatch.setattr(module, name, make)
    torch_backend.stand_in_for_gloo()
    for module in (dist, distributed_c10d, device_mesh):
        vars(module)["init_process_group"]()
    vars(device_mesh)["new_group"]("gloo")
    assert begun == ["wan", "wan", "wan", "gloo"]
