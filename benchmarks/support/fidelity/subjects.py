"""One shaped link between two hosts, made by the testbed and made by Mininet, to be measured the same way.

    source --- router ==== the link ==== (router) --- target

Both are shaped where packets leave a router, not on the sending host: TCP limits the queue of a sending host, which
would spoil Mininet's figures. Mininet's hosts are joined as in its `linuxrouter.py` example.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from mininet.link import TCLink
from mininet.log import lg
from mininet.net import Mininet

from testbed.emulation.shaping import LinkCounters
from testbed.emulation.testbed import Testbed
from testbed.link import MTU_FRAME_BYTES, LinkState, Queue
from testbed.spec.topology import Topology

#: TCP's buffers in both hosts' kernels: 500 Mbit/s times 300 ms is 19 MB, the queue holds as much again, and the kernel
#: announces half of a buffer as its window.
TCP_BUFFERS = ("net.ipv4.tcp_rmem=4096 131072 134217728", "net.ipv4.tcp_wmem=4096 131072 134217728")

#: The LAN adds no delay and, up to 10 Gbit/s, no limit, so that only the link is measured.
TOPOLOGY = {
    "name": "fidelity",
    "sites": {"a": {"workers": 1}, "b": {"workers": 1}},
    "links": [{"between": ["a", "b"], "rate": "100mbit", "delay": "0ms"}],
    "lan": {"rate": "10gbit", "delay": "0ms"},
}

#: The bytes of a frame before its packet.
ETHERNET_BYTES = MTU_FRAME_BYTES - 1500

#: In effect no limit: more than any host carries, and no more than the LAN's cards take.
FREE = LinkState(10e9, 0.0, queue=Queue(25e6, "bytes"))


class Subject(ABC):
    """A link, the same in both directions, and the two hosts that it joins. A context manager: up on entry."""

    name: ClassVar[str]
    source: Any
    target: Any
    address: str
    #: The largest packet of IP.
    mtu: int = 1500

    def __init__(self, state: LinkState) -> None:
        self.state = state
        #: Errors that the subject reported before it went on.
        self.complaints: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._build(stack)
            for host in (self.source, self.target):
                host.popen(["sysctl", "-qw", *TCP_BUFFERS]).wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def frame_bytes(self) -> int:
        """The bytes of a full frame, without FCS."""
        return self.mtu + ETHERNET_BYTES

    @abstractmethod
    def _build(self, stack: ExitStack) -> None: ...

    @abstractmethod
    def change(self, state: LinkState) -> None:
        """Put another state in force, by the subject's own means."""

    @abstractmethod
    def unlimit(self) -> None:
        """Remove limit, delay and loss until the next change; `state` then has the rate of the LAN."""

    def counters(self) -> LinkCounters | None:
        """Return the shaper's counters of the direction from source to target; None without any."""
        return None


class TestbedLink(Subject):
    """Two sites with a worker each; namespaces stand for the workers' containers."""

    __test__ = False
    name = "testbed"

    def _build(self, stack: ExitStack) -> None:
        topology = Topology.from_value(TOPOLOGY, Path("fidelity.yaml"))
        self._network = stack.enter_context(Testbed(topology, workers="namespaces")).network
        self.backend = self._network.shaper.name
        self.change(self.state)
        self.source, self.target = (self._network.container(worker.name) for worker in topology.workers)
        self.address = self._network.address(topology.workers[1])

    def change(self, state: LinkState) -> None:
        """Put another state in force, in place."""
        links = self._network.topology.links.values()
        self._network.links_in_force.configure(replace(link, state=state) for link in links)
        self.state = state

    def unlimit(self) -> None:
        """Put FREE in force."""
        self.change(FREE)

    def counters(self) -> LinkCounters | None:
        """Return the shaper's counters of the direction a->b."""
        return self._network.shaper.counters()["a->b"]


class MininetLink(Subject):
    """A TCLink, configured as Mininet's users do."""

    name = "Mininet"
    address = "10.0.2.2"

    def _build(self, stack: ExitStack) -> None:
        self.complaints = stack.enter_context(recorded_complaints())
        Mininet.inited = True  # its first start would raise limits of this machine
        net = Mininet(controller=None)
        stack.callback(net.stop)
        self.source = net.addHost("source", ip="10.0.1.2/24", defaultRoute="via 10.0.1.1")
        self.target = net.addHost("target", ip=f"{self.address}/24", defaultRoute="via 10.0.2.1")
        router = net.addHost("router", ip=None)
        net.addLink(self.source, router, params2={"ip": "10.0.1.1/24"})
        self._link = net.addLink(router, self.target, cls=TCLink, params1={"ip": "10.0.2.1/24"}, **_options(self.state))
        net.start()
        router.cmd("sysctl -w net.ipv4.ip_forward=1")
        if self.state.loss:  # netem would lose a super-packet of many datagrams as one
            self.source.popen(["ethtool", "-K", "source-eth0", "tx-udp-segmentation", "off"]).wait()

    def change(self, state: LinkState) -> None:
        """Put another state in force, by TCLink's `config`."""
        for interface in (self._link.intf1, self._link.intf2):
            interface.config(**_options(state))
        self.state = state

    def unlimit(self) -> None:
        """Delete the queueing disciplines of both interfaces."""
        for interface in (self._link.intf1, self._link.intf2):
            interface.tc("%s qdisc delete dev %s root")
        self.state = FREE


def _options(state: LinkState) -> dict[str, Any]:
    """Return a state as TCLink's options: Mbit/s, milliseconds as text, percent."""
    delay = {"delay": f"{state.delay_s * 1e3:g}ms"} if state.delay_s else {}
    return {"bw": state.rate_bps / 1e6, "loss": state.loss * 100, **delay}


@contextmanager
def recorded_complaints() -> Iterator[list[str]]:
    """Collect Mininet's errors instead of printing them."""
    complaints: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: complaints.append(record.getMessage().strip())  # type: ignore[method-assign]
    lg.addHandler(handler)
    lg.removeHandler(lg.ch)
    try:
        yield complaints
    finally:
        lg.removeHandler(handler)
        lg.addHandler(lg.ch)
