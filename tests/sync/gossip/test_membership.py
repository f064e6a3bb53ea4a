"""Tests of members that join without a controller, over loopback: what is refused, and that two of them average."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from testbed.protocol import Goodbye
from testbed.schemes import hop
from testbed.sync import gossip
from testbed.sync.errors import SyncError
from testbed.sync.gossip.membership import Membership
from tests.ports import free_port
from tests.sync.sessions import refuse_threads
from tests.waiting import until

pytestmark = pytest.mark.local


class Idle(gossip.TrainingMember):
    """A member that has nothing to do."""

    def receive(self, sender: str, message: gossip.Message) -> tuple[gossip.Send, ...]:
        return ()

    def program(self) -> Any:
        yield gossip.Advance(0)


def idle(name: str = "a") -> Idle:
    return Idle(name, torch.zeros(1))


def addresses(*names: str) -> dict[str, str]:
    return {name: f"127.0.0.1:{free_port()}" for name in names}


def each(names: str, work: Callable[[str], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(names)) as pool:
        return [*pool.map(work, names)]


def test_three_members_of_hop_average_without_a_controller() -> None:
    peers = addresses(*"abc")

    def trained(name: str) -> Tensor:
        parameters = [torch.full((2, 2), float(ord(name) - ord("a"))), torch.zeros(1)]
        with hop.join(name, parameters, 60, peers=peers, token="a secret", weights="metropolis") as membership:
            membership.train_model(parameters, lambda number: parameters[1].add_(1.0))
        assert membership.rounds == 60
        return torch.cat([parameter.flatten() for parameter in parameters])

    for values in each("abc", trained):
        assert torch.allclose(values, torch.tensor([1.0, 1.0, 1.0, 1.0, 60.0]))


def test_a_step_has_the_caller_s_default_device() -> None:
    peers, found = addresses(*"ab"), []

    def trained(name: str) -> None:
        parameters = [torch.zeros(1, device="cpu")]
        with hop.join(name, parameters, 2, peers=peers, token="a secret") as membership, torch.device("meta"):
            membership.train_model(parameters, lambda number: found.append(torch.zeros(1).device.type))

    each("ab", trained)
    assert found == ["meta"] * 4


def test_a_congestion_control_that_the_kernel_lacks_is_named_at_once() -> None:
    met = Mock()
    met.job.congestion = "none_such"
    with pytest.raises(SyncError) as caught:
        Membership(met, idle())
    assert caught.value.field == "congestion"
    met.connection.assert_not_called()


def test_a_member_that_fails_ends_the_others() -> None:
    peers = addresses(*"ab")

    def trained(name: str) -> BaseException | None:
        def step(number: int) -> None:
            if name == "a" and number == 3:
                raise ZeroDivisionError

        try:
            with hop.join(name, [torch.zeros(1)], 10, peers=peers, token="a secret") as membership:
                membership.train_model([torch.zeros(1)], step)
        except (ZeroDivisionError, SyncError) as error:
            return error
        return None

    failed, left = each("ab", trained)
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(left, SyncError) and (left.rule, left.member) == ("peer-lost", "a")


def test_a_member_with_another_secret_is_refused() -> None:
    peers = addresses(*"ab")

    def trained(name: str) -> SyncError | None:
        try:
            with hop.join(name, [torch.zeros(1)], 3, peers=peers, token=f"{name}'s own", timeout=2.0) as membership:
                membership.train_model([torch.zeros(1)], lambda number: None)
        except SyncError as error:
            return error
        return None

    assert all(each("ab", trained))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "peers="),
        ({"peers": {"a": "h:1"}, "control": "unix:/x"}, "either"),
        ({"peers": {"a": "h:1", "b": "h:2"}}, "token="),
        ({"peers": {"b": "h:2"}, "token": "x"}, "add the address of a"),
        ({"peers": {"a": "h", "b": "h:2"}, "token": "x"}, "host:port"),
        ({"peers": {"a": "h..i:1", "b": "h:2"}, "token": "x"}, "host:port"),
        ({"peers": {"a": "h:1", "b": "[]:2"}, "token": "x"}, "host:port"),
        ({"peers": {"a": f"h:{'1' * 5000}", "b": "h:2"}, "token": "x"}, "host:port"),
        ({"peers": {"a": "0.0.0.0:1", "b": "h:2"}, "token": "x"}, "reach a"),
        ({"peers": {"a": "h:1", "b c": "h:2"}, "token": "x"}, "b c"),
        ({"peers": {"a": "h:1", "b": "h:2"}, "token": "x", "partners": ["c"]}, "partners c"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        gossip.join(idle(), "a", **arguments)


def test_a_program_that_does_not_fit_is_the_error_where_the_controller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = SimpleNamespace(send=Mock(side_effect=BrokenPipeError), close=lambda: None)
    met = SimpleNamespace(name="a", accepting=nullcontext(), channel=channel)
    monkeypatch.setattr("testbed.sync.gossip.membership.rendezvous", lambda *_: met)
    with pytest.raises(ValueError, match="on purpose"):
        gossip.join(Mock(side_effect=ValueError("on purpose")), "a", control="unix:/x")


def test_the_controller_is_told_of_any_error_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Goodbye] = []
    channel = SimpleNamespace(send=sent.append, close=lambda: None)
    met = SimpleNamespace(name="a", accepting=nullcontext(), channel=channel)
    monkeypatch.setattr("testbed.sync.gossip.membership.rendezvous", lambda *_: met)
    with pytest.raises(TypeError):
        gossip.join(Mock(side_effect=TypeError("on purpose")), "a", control="unix:/x")
    assert ["on purpose" in goodbye.error for goodbye in sent] == [True]


def test_a_member_that_no_thread_can_be_started_for_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*threading.enumerate()}
    refuse_threads(monkeypatch, "control")
    with pytest.raises(SyncError):
        gossip.join(idle(), "a", peers=addresses("a", "b"), token="a secret")
    until(lambda: {*threading.enumerate()} <= before)


def test_an_address_to_listen_on_that_no_host_can_have_is_refused() -> None:
    with pytest.raises(SyncError) as caught:
        gossip.join(idle(), "a", peers=addresses("a", "b"), token="x", listen="ä..b")
    assert (caught.value.rule, caught.value.given) == ("address", "ä..b")


def test_an_address_that_is_taken_is_refused() -> None:
    peers = addresses("a", "b")
    with gossip.join(idle(), "a", peers=peers, token="x", partners=()), pytest.raises(SyncError) as caught:
        gossip.join(idle(), "a", peers=peers, token="x", partners=())
    assert caught.value.rule == "address"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"peers": {"a": "h:1", "b": "h:2"}}, "iterations="),
        ({"control": "unix:/x", "iterations": 3}, "the controller gives"),
        ({"peers": {"a": "h:1", "b": "h:2"}, "iterations": 3, "backup": 1}, "max_ig"),
        ({"peers": {"a": "h:1", "b": "h:2"}, "iterations": 3, "graph": "double-ring"}, "multiple of 4"),
        ({"peers": {"a": "h:1", "b": "h:2"}, "iterations": 3, "graph": "network"}, "graph: ring"),
    ],
)
def test_hop_s_arguments_are_checked_before_anything_is_sent(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        hop.join("a", [torch.zeros(1)], token="x", **arguments)
