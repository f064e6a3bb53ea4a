"""Checkpoints: training goes on from one bit by bit, and other files are refused with an error."""

from __future__ import annotations

import errno
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from testbed import sync
from testbed.plan import Plan
from testbed.sync.checkpoint import StateDictFns, save
from testbed.sync.strategies import Gradients
from testbed.sync.strategies.strategy import Strategy
from tests.sync.plans import chain, names
from tests.sync.sessions import run
from tests.sync.strategies.training import flat, model, step

pytestmark = pytest.mark.local

#: Two members, because sums of two have the same bits in either order.
MEMBERS = names(2)
PLAN = Plan(0, MEMBERS, (chain(MEMBERS),), codec="int8")
SAVED_AFTER = 5


def strategies(session: sync.Session, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Strategy]:
    return {
        "gradients": session.gradients(net, optimizer),
        "powersgd": session.gradients(net, optimizer, powersgd=sync.PowerSgd(2)),
        "local": session.local_sgd(net, optimizer, 3),
        "post-local": session.post_local_sgd(net, optimizer, start=4, every=3),
        "diloco": session.diloco(net, optimizer, 6, fragments=3),
        "streamed": session.diloco(net, optimizer, 4, fragments=2, delay=2),
    }


@pytest.mark.parametrize("name", ["gradients", "powersgd", "local", "post-local", "diloco", "streamed"])
def test_training_goes_on_to_the_bit(tmp_path: Path, name: str) -> None:
    files = {member: tmp_path / f"{member}.checkpoint" for member in MEMBERS}

    def whole(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        with strategies(session, net, optimizer)[name] as strategy:
            for number in range(12):
                step(net, optimizer, session.name, number)
                if number + 1 == SAVED_AFTER:
                    session.save(files[session.name], model=net, optimizer=optimizer, strategy=strategy)
        return flat(net)

    def rest(session: sync.Session) -> torch.Tensor:
        saved = sync.load(files[session.name])
        net = model()
        torch.nn.utils.vector_to_parameters(torch.zeros_like(flat(net)), net.parameters())
        optimizer = torch.optim.Adam(net.parameters(), lr=0.5)
        strategy = strategies(session, net, optimizer)[name]
        saved.restore(model=net, optimizer=optimizer, strategy=strategy)
        with strategy:
            for number in range(SAVED_AFTER, 12):
                step(net, optimizer, session.name, number)
        return flat(net)

    first = run(tmp_path, PLAN, whole)
    saved = sync.load(files["m0"])
    assert saved.plan == PLAN and saved.epoch == 0
    (tmp_path / "again").mkdir()
    second = run(tmp_path / "again", PLAN, rest, after_round=saved.round)
    for member in MEMBERS:
        assert torch.equal(first[member], second[member])


def test_rounds_go_on_counting(tmp_path: Path) -> None:
    def work(session: sync.Session) -> tuple[int, int]:
        return session.allreduce(torch.ones(3)).round, session.rounds

    assert set(run(tmp_path, replace(PLAN, codec="fp32"), work, after_round=41).values()) == {(42, 42)}


def test_rounds_that_end_while_the_states_are_taken_count(tmp_path: Path) -> None:
    """Streaming DiLoCo waits for its rounds under way then. At one member they may have ended already."""

    def work(session: sync.Session) -> int:
        def state() -> dict[str, Any]:
            session.allreduce(torch.ones(3))
            return {}

        path = f"{tmp_path}/{session.name}.checkpoint"
        session.save(path, strategy=StateDictFns(state, lambda _: None))
        return sync.load(path).round

    assert set(run(tmp_path, replace(PLAN, codec="fp32"), work).values()) == {1}


class Nasty:
    """An object that prints `executed` when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


@pytest.mark.parametrize("content", ["pickle", "garbage", "text", "empty", "other", "cut short"])
def test_what_is_no_checkpoint_is_not_executed(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoint"
    if content == "pickle":
        torch.save({"version": 1, "round": 1, "plan": Nasty(), "parts": {}}, path)
    elif content == "garbage":
        path.write_bytes(pickle.dumps(Nasty()))
    elif content == "text":
        path.write_text("the weights")  # read as a pickle, its first letter takes from an empty stack
    elif content == "empty":
        path.write_bytes(b"")
    elif content == "other":
        torch.save({"weights": torch.ones(3)}, path)
    else:
        torch.save({"version": 1, "round": 1, "plan": PLAN.dumps(), "parts": {}}, path)
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(sync.CheckpointError) as caught:
        sync.load(path)
    assert (caught.value.rule, caught.value.file) == ("no-checkpoint", path)
    assert "executed" not in capsys.readouterr().out


def test_parts_must_be_those_that_were_saved(tmp_path: Path) -> None:
    net = model()
    sync.checkpoint.save(tmp_path / "file", 3, PLAN, {"model": net.state_dict()})
    with pytest.raises(sync.CheckpointError) as caught:
        sync.load(tmp_path / "file").restore(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=1.0))
    assert (caught.value.rule, caught.value.given) == ("parts", ["model", "optimizer"])


@pytest.mark.parametrize("name", ["model", "strategy"])
def test_a_part_that_takes_no_such_state_is_named(tmp_path: Path, name: str) -> None:
    net = model()
    strategy = Gradients(cast(Any, None), [*net.parameters()])
    states = {"model": net.state_dict(), "strategy": strategy.state_dict(), name: {"of": "another"}}
    sync.checkpoint.save(tmp_path / "file", 3, PLAN, states)
    with pytest.raises(sync.CheckpointError) as caught:
        sync.load(tmp_path / "file").restore(model=net, strategy=strategy)
    assert (caught.value.rule, caught.value.given) == ("state", name)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    with pytest.raises(OSError) as caught:
        sync.checkpoint.save(Path("/dev/full"), 3, PLAN, {"model": {"weights": torch.ones(100_000)}})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


def test_a_state_that_could_not_be_read_again_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save(path, 1, PLAN, {"model": {"w": torch.ones(2)}})
    with pytest.raises(sync.CheckpointError) as caught:
        save(path, 2, PLAN, {"model": {"w": torch.ones(2), "where": Path("x")}})
    assert caught.value.rule == "not-plain" and sync.load(path).round == 1
    assert [*tmp_path.iterdir()] == [path]
