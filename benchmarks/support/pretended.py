"""Pretended hosts: network namespaces joined by a network whose delay can be set.

    north (namespace)            between (namespace)          south (namespace)
    eth0 10.77.0.1 --------------- a bridge ------------------- eth0 10.77.0.2
    shaped: one way                                             shaped: one way

They share this machine's kernel, processors and clocks. They show whether the parts of a network find each other over a
network between hosts, not what more processors bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from ipaddress import IPv4Address, IPv4Interface
from itertools import combinations
from typing import Self

from testbed.emulation.network import device
from testbed.emulation.network.namespace import Namespace, opened
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.shaping import Port, open_shaper
from testbed.link import LinkState, Queue
from testbed.scaleout.split.cut_links import Pair

#: More than any host carries.
NO_LIMIT_BPS = 50e9
LOOPBACK = 1
MTU = 1500


class PretendedHosts:
    """Hosts by `names`, `one_way_s` apart, while the context is entered. Without a delay nothing is shaped."""

    def __init__(self, names: Sequence[str], one_way_s: float = 0.0) -> None:
        self.names = tuple(names)
        self.addresses = {name: IPv4Address(f"10.77.0.{number}") for number, name in enumerate(names, start=1)}
        self._one_way_s = one_way_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.namespaces = {name: stack.enter_context(closing(Namespace())) for name in self.names}
            between = stack.enter_context(closing(Namespace()))
            middle = stack.enter_context(closing(Netlink(between.path)))
            middle.apply(device.bridge("between"))
            bridge = middle.index("between")
            middle.apply(device.mtu(bridge, MTU), device.up(bridge))
            for name, namespace in self.namespaces.items():
                host = Netlink(namespace.path)
                with opened(namespace.holder) as there:
                    middle.apply(device.veth(name, None, "eth0", None, there))
                port, card = middle.index(name), host.index("eth0")
                middle.apply(device.mtu(port, MTU), device.plugged(port, bridge), device.up(port))
                own = IPv4Interface((int(self.addresses[name]), 24))
                host.apply(device.mtu(card, MTU), device.address(card, own), device.up(card), device.up(LOOPBACK))
                host.close()
            if self._one_way_s:
                self._shaper = stack.enter_context(open_shaper())
                ports = {name: Port(name, namespace.path, "eth0") for name, namespace in self.namespaces.items()}
                self._shaper.attach({port: self._state(self._one_way_s) for port in ports.values()})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def slow_down(self, one_way_s: float) -> None:
        """Set another one-way delay between all hosts."""
        self._shaper.apply({name: self._state(one_way_s) for name in self.names})

    def pairs(self) -> list[Pair]:
        """Return each pair of hosts."""
        return [frozenset(pair) for pair in combinations(self.names, 2)]

    @staticmethod
    def _state(one_way_s: float) -> LinkState:
        return LinkState(NO_LIMIT_BPS, one_way_s, queue=Queue(64e6, "bytes"))
