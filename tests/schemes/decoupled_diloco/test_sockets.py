"""Decoupled DiLoCo as drivers run it: through each codec, and with a member that dies; once over sockets."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from testbed.protocol import NodeConfiguration
from testbed.schemes.options import OuterOptions
from testbed.sync.codecs import by_name
from testbed.sync.gossip.effects import Participant
from tests.schemes.participants import participant
from tests.sync.gossip.driven import Controller, Network, World, rough
from tests.sync.gossip.loopback import start

MEMBERS = ("w0", "w1", "w2")
#: With DiLoCo's 0.9 it swings around the optimum for as long as is tested, the further the later changes come.
OUTER = OuterOptions(0.7, 0.5)
PARTNERS = {"w0": MEMBERS[1:], "w1": ("w0",), "w2": ("w0",)}


def members(rounds: int, codec: str = "fp32", clock: Callable[[], float] = time.monotonic) -> dict[str, Participant]:
    made = {}
    for name in MEMBERS:
        place = NodeConfiguration(
            "decoupled_diloco", PARTNERS[name], PARTNERS[name], {}, PARTNERS[name], {"syncer": "w0", "codec": codec}
        )
        options = {"every": 4, "fragments": 2, "codec": codec, "outer": OUTER}
        start = torch.zeros(33)
        made[name] = participant("decoupled_diloco", name, MEMBERS, place, start, rounds, clock=clock, **options)
    return made


def change(name: str, iteration: int, parameters: Tensor) -> Tensor:
    return (3.0 - parameters) / 50


def rough_with_one_slow(seed: int) -> Network:
    network = rough(seed)
    network.step_s = lambda name, iteration: network.draw.uniform(0.8, 1.2) * (0.004 if name == "w2" else 0.001)
    return network


@pytest.mark.pure
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16", "bins4"])
def test_all_end_with_the_same_bits_near_the_optimum_whatever_the_codec(codec: str, seed: int) -> None:
    world = World(rough_with_one_slow(seed), change)
    made = members(100, codec, world.time.monotonic)
    world.start(made, PARTNERS, 33, by_name(codec))
    world.run()
    assert world.errors() == {}
    assert all(torch.equal(made["w0"].model, one.model) for one in made.values())
    assert float((made["w0"].model - 3.0).abs().max()) < 1.0


@pytest.mark.pure
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_others_go_on_without_one_that_died(seed: int) -> None:
    world = World(rough_with_one_slow(seed), change)
    made = members(60, clock=world.time.monotonic)
    world.start(made, PARTNERS, 33, survives=True)
    Controller(world, {"w1": 5})
    world.run()
    assert world.errors().keys() == {"w1"}
    assert torch.equal(made["w0"].model, made["w2"].model)


@pytest.mark.local
def test_all_end_with_the_same_bits_over_sockets() -> None:
    made = members(100, "bins4")
    nodes = start(
        made,
        PARTNERS,
        33,
        lambda name: lambda parameters, iteration: change(name, iteration, parameters),
        codec=by_name("bins4"),
    )
    for node in nodes.values():
        node.join()
    assert not [node.error for node in nodes.values() if node.error]
    assert all(torch.equal(made["w0"].model, one.model) for one in made.values())
