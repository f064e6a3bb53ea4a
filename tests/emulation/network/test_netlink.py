"""Requests to the kernel over netlink, which take effect in the namespace that the socket was opened in."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import count
from typing import Any

import pytest

from testbed.emulation.network import device
from testbed.emulation.network.namespace import Namespace, inside, opened
from testbed.emulation.network.netlink import AT_ONCE, Netlink
from testbed.emulation.shaping.tc import limit_rate

pytestmark = pytest.mark.system


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with closing(Namespace()) as namespace:
        yield namespace


@pytest.fixture
def netlink(namespace: Namespace) -> Iterator[Netlink]:
    with closing(Netlink(namespace.path)) as netlink:
        yield netlink


def told(namespace: Namespace, *words: str) -> Any:
    """Return the JSON that an iproute2 command prints in the namespace."""
    return json.loads(inside(namespace.path, lambda: subprocess.check_output(words)))


def test_a_pair_has_an_end_in_each_namespace(namespace: Namespace, netlink: Netlink) -> None:
    with closing(Namespace()) as other, closing(Netlink(other.holder)) as there:
        with opened(other.holder) as far:
            netlink.apply(device.veth("here", "02:00:00:00:00:01", "there", None, far))
        (shown,) = told(namespace, "ip", "-j", "link", "show", "here")
        assert (shown["address"], "UP" in shown["flags"]) == ("02:00:00:00:00:01", False)
        assert {name for _, name in inside(other.path, socket.if_nameindex)} == {"lo", "there"}
        there.apply(device.mac(there.index("there"), "02:00:00:00:00:02"), device.up(there.index("there")))
        (shown,) = told(other, "ip", "-j", "link", "show", "there")
        assert (shown["address"], "UP" in shown["flags"]) == ("02:00:00:00:00:02", True)
        netlink.apply(device.gone(netlink.index("here")))
        assert [name for _, name in inside(other.path, socket.if_nameindex)] == ["lo"]


def test_a_port_of_a_bridge_is_isolated(namespace: Namespace, netlink: Netlink) -> None:
    with opened(namespace.holder) as own:
        netlink.apply(device.bridge("lan", "02:00:00:00:00:03"), device.veth("w0", None, "eth0", None, own))
    netlink.apply(device.plugged(netlink.index("w0"), netlink.index("lan")), device.isolated(netlink.index("w0")))
    (shown,) = told(namespace, "ip", "-j", "-d", "link", "show", "w0")
    assert shown["master"] == "lan"
    assert shown["linkinfo"]["info_slave_data"]["isolated"]


def test_addresses_neighbours_and_routes(namespace: Namespace, netlink: Netlink) -> None:
    netlink.apply(device.bridge("lan"))
    lan, far = netlink.index("lan"), IPv4Network("10.9.0.0/24")
    netlink.apply(device.address(lan, IPv4Interface("10.8.0.1/24")), device.up(lan))
    netlink.apply(device.neighbour(lan, IPv4Address("10.8.0.7"), "02:00:00:00:00:07"))
    (neighbour,) = told(namespace, "ip", "-j", "neigh")
    assert (neighbour["dst"], neighbour["lladdr"]) == ("10.8.0.7", "02:00:00:00:00:07")
    assert neighbour["state"] == ["PERMANENT"]

    for hop in ("10.8.0.7", "10.8.0.8"):  # the second takes the place of the first
        netlink.apply(device.route(far, IPv4Address(hop), IPv4Address("10.8.0.1")))
        (route,) = told(namespace, "ip", "-j", "route", "show", str(far))
        assert (route["gateway"], route["prefsrc"], route["dev"]) == (hop, "10.8.0.1", "lan")
    netlink.apply(device.route(IPv4Network("0.0.0.0/0"), IPv4Address("10.8.0.9")))
    (route,) = told(namespace, "ip", "-j", "route", "show", "default")
    assert route["gateway"] == "10.8.0.9"
    netlink.apply(device.no_route(far))
    assert told(namespace, "ip", "-j", "route", "show", str(far)) == []


@pytest.mark.parametrize("rate_bps", [64e3, 1e9, 100e9])
def test_an_interface_has_the_rate_that_was_asked_for(namespace: Namespace, netlink: Netlink, rate_bps: float) -> None:
    for rate in (10e6, rate_bps):
        netlink.apply(limit_rate(1, rate))
    (shown,) = told(namespace, "tc", "-j", "qdisc", "show", "dev", "lo")
    assert shown["kind"] == "tbf"
    assert shown["options"]["rate"] == rate_bps / 8
    # As iproute2 has it, which counts the time that it takes in whole microseconds.
    assert shown["options"]["burst"] == pytest.approx(65536, rel=0.05)


def test_a_refusal_is_raised_and_says_why(netlink: Netlink) -> None:
    with pytest.raises(OSError) as refusal:
        netlink.index("none")
    assert refusal.value.errno == errno.ENODEV
    with pytest.raises(OSError) as caught:
        netlink.apply(device.up(1), device.route(IPv4Network("10.9.0.0/24"), IPv4Address("10.8.0.7")), device.up(1))
    assert caught.value.errno == errno.ENETUNREACH
    assert netlink.index("lo") == 1, "the answers to what came before are read"


def test_there_may_be_more_requests_than_answers_fit(namespace: Namespace, netlink: Netlink) -> None:
    addresses = [IPv4Interface((int(IPv4Address("10.8.0.0")) + number, 16)) for number in range(1, 4 * AT_ONCE)]
    netlink.apply(*(device.address(1, address) for address in addresses))
    (shown,) = told(namespace, "ip", "-j", "-4", "address", "show", "lo")
    assert [each["local"] for each in shown["addr_info"]] == [str(address.ip) for address in addresses]


def test_numbers_of_requests_begin_again_after_32_bits(netlink: Netlink) -> None:
    netlink._sequence = count((1 << 32) - 1)
    netlink.apply(device.up(1), device.up(1))
    assert netlink.index("lo") == 1
