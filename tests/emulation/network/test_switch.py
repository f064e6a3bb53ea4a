"""A site's switch, each kind of it: what one worker sends another passes the router, and is shaped there."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from testbed.emulation import label
from testbed.emulation.network import device, switch
from testbed.emulation.network.namespace import Namespace, in_own_thread, inside, opened
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.network.network import Network
from testbed.emulation.network.switch import SWITCHES, OpenVSwitch, SwitchError, choose_switch
from testbed.link import link_name
from testbed.spec.topology import SwitchName, Topology
from tests.emulation.network.wan import Wan, up
from tests.waiting import PATIENCE_S, until

NETWORK = "test-switch"
LAN_DELAY_S = 5e-3

SWITCHED = Topology.from_value(
    {
        "name": "switched",
        "sites": {"quito": {"workers": 2}, "lima": {"workers": 1}},
        "lan": {"rate": "200mbit", "delay": "5ms"},
        "links": [{"between": ["quito", "lima"], "rate": "50mbit", "delay": "10ms"}],
    },
    Path("switched.yaml"),
)


KINDS = [
    pytest.param("bridge", marks=pytest.mark.system),
    pytest.param("openvswitch-user", marks=pytest.mark.system),
    pytest.param("openvswitch", marks=pytest.mark.guest),
]


@pytest.fixture(scope="module", params=KINDS)
def wan(request: pytest.FixtureRequest) -> Iterator[Wan]:
    with label.labelled(NETWORK), up(replace(SWITCHED, switch=request.param), NETWORK) as wan:
        yield wan
    assert not list(label.processes(NETWORK))


def test_it_is_the_one_asked_for(wan: Wan) -> None:
    assert wan.network.switch == wan.network.topology.switch
    assert isinstance(wan.network.router("quito").switch, SWITCHES[wan.network.switch])


def test_workers_of_a_site_reach_each_other_over_the_router_alone(wan: Wan) -> None:
    link = link_name("quito", "quito-w1")
    before = wan.network.shaper.counters()[link].packets
    wan.assert_answered("quito-w0", "quito-w1", 4 * LAN_DELAY_S)
    assert wan.network.shaper.counters()[link].packets >= before + 8


def test_workers_of_two_sites_reach_each_other(wan: Wan) -> None:
    wan.assert_answered("lima-w0", "quito-w1", 4 * LAN_DELAY_S + 2 * 0.010)


@pytest.mark.parametrize(("source", "target"), [("quito-w0", "quito-w1"), ("lima-w0", "quito-w0")])
def test_tcp_passes_whole(wan: Wan, source: str, target: str) -> None:
    """Checksums too: a switch that leaves them half done passes pings, and no byte of TCP."""
    payload = bytes(range(256)) * 4096
    listener = inside(wan.network.container(target).netns, socket.socket)
    sender = inside(wan.network.container(source).netns, socket.socket)
    with listener, sender:
        listener.bind((wan.address(target), 7000))
        listener.listen()
        sender.settimeout(PATIENCE_S)
        sender.connect((wan.address(target), 7000))
        receiver, _ = listener.accept()
        with receiver:
            receiver.settimeout(PATIENCE_S)
            arrived = bytearray()
            for begin in range(0, len(payload), 65536):
                sender.sendall(payload[begin : begin + 65536])
                while len(arrived) < begin + 65536:
                    arrived += receiver.recv(65536)
    assert arrived == payload


def test_a_worker_leaves_and_comes_back(wan: Wan) -> None:
    """A port of the same name is a new one, shaped again before anything passes."""
    worker = next(worker for worker in wan.network.topology.workers if worker.name == "quito-w1")
    wan.network.leave([worker.name])
    holder = Namespace()
    try:
        wan.network.swap(wan.network.topology, holders={worker.name: holder.holder})
        wan.assert_answered("quito-w0", "quito-w1", 4 * LAN_DELAY_S)
    finally:
        wan.network.leave([worker.name])
        holder.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_outlives_the_thread_that_made_it(kind: SwitchName) -> None:
    """A host of a split network carries out each request in a thread of its own."""
    with ExitStack() as stack:
        stack.enter_context(label.labelled(f"{NETWORK}-thread"))
        namespace = stack.enter_context(closing(Namespace()))
        netlink = stack.enter_context(closing(Netlink(namespace.path)))
        switch = in_own_thread(lambda: SWITCHES[kind](namespace.path, netlink, "02:00:0a:00:00:01"))
        stack.callback(switch.close)
        with opened(namespace.holder) as there:
            netlink.apply(device.veth("w0", None, "eth0", None, there))
        switch.plug("w0")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_daemon_that_ended_is_a_failure(kind: SwitchName) -> None:
    with ExitStack() as stack:
        stack.enter_context(label.labelled(f"{NETWORK}-daemon"))
        namespace = stack.enter_context(closing(Namespace()))
        netlink = stack.enter_context(closing(Netlink(namespace.path)))
        switch = stack.enter_context(closing(SWITCHES[kind](namespace.path, netlink, "02:00:0a:00:00:01")))
        assert isinstance(switch, OpenVSwitch)
        assert switch.failure() is None
        switch._daemons[1].kill()
        until(lambda: switch.failure() is not None)
        assert "SIGKILL" in str(switch.failure()) and "switch: bridge" in str(switch.failure())


@pytest.mark.parametrize("kind", KINDS[1:])
def test_its_daemons_carry_the_label_of_their_network(kind: SwitchName) -> None:
    labels = {label.ENVIRONMENT: f"{NETWORK}-first"}
    with label.labelled(f"{NETWORK}-second"), closing(Namespace()) as namespace:
        with closing(Netlink(namespace.path)) as netlink:
            with closing(SWITCHES[kind](namespace.path, netlink, "02:00:0a:00:01:01", labels)) as made:
                assert len(list(label.processes(f"{NETWORK}-first"))) >= 2
                assert made.failure() is None


@pytest.mark.pure
def test_a_switch_that_needs_missing_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose_switch("auto") == "bridge"
    kinds: tuple[SwitchName, ...] = ("openvswitch", "openvswitch-user")
    for kind in kinds:
        with pytest.raises(SwitchError, match=rf"switch: {kind}.*openvswitch-switch.*switch: bridge"):
            choose_switch(kind)


@pytest.mark.pure
def test_a_network_fails_with_the_switch_of_a_site_that_is_here() -> None:
    routers = {"quito-r": SimpleNamespace(failure=lambda: None), "lima-r": SimpleNamespace(failure=lambda: "it died")}
    here: Any = SimpleNamespace(
        topology=SimpleNamespace(sites=("quito", "lima", "cuzco")),
        nameToNode=routers,
        router=lambda site: routers[f"{site}-r"],
        shaper=SimpleNamespace(failure=lambda: None),
    )
    assert Network.failure(here) == "lima: it died"
    del routers["lima-r"]  # on another host
    assert Network.failure(here) is None


@pytest.mark.pure
def test_a_trial_of_open_vswitch_that_says_nothing_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess(["ovs-dpctl"], -9, stdout="", stderr="")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(switch, "missing_programs", list)
    monkeypatch.setattr(switch, "Namespace", MagicMock())
    monkeypatch.setattr(switch, "inside", lambda *_: ended)
    assert choose_switch("auto") == "bridge"
    with pytest.raises(SwitchError, match="SIGKILL"):
        choose_switch("openvswitch")
