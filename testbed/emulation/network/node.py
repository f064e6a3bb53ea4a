"""Mininet nodes that are bare network namespaces and start a shell only when one is needed.

Mininet starts an interactive bash for every node and configures through it: about 50 ms a node and 5 ms a command. Here
interfaces, addresses and routes go through netlink, and the shell starts with the first `cmd()`, so Mininet's prompt
and scripts still work. The namespaces end with the process that holds them, so a crash leaves none.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any, TypeVar

from mininet.link import Intf, Link
from mininet.node import Node

from testbed.emulation import label
from testbed.emulation.errors import EmulationError
from testbed.emulation.network import device
from testbed.emulation.network.names import Names
from testbed.emulation.network.namespace import Namespace, held_by, inside, opened
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.network.switch import Switch
from testbed.emulation.process import ProcessIdentity
from testbed.link import link_ends

T = TypeVar("T")

#: The kernel's settings; those of networking are of the reader's own network namespace.
SETTINGS = Path("/proc/sys")


class SettingRefused(EmulationError):
    """The kernel lacks a setting (sysctl) or rejects its value. `field` is the sysctl's name, `given` the value."""

    def __init__(self, setting: str, error: OSError) -> None:
        name, _, value = setting.partition("=")
        if error.errno == errno.ENOENT:
            why = "this machine's kernel does not have it: use Linux 5.4 or later, built with full networking"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            why = f"{error.strerror}; `testbed doctor --fix` makes {SETTINGS} writable"
        else:
            why = f"the kernel refuses it ({error.strerror}); `testbed doctor` says what this machine can do"
        super().__init__(f"the kernel setting {setting} can't be applied: {why}", field=name, given=value)


def received(pid: int) -> dict[str, tuple[int, int]]:
    """Return the bytes and packets that the kernel received on each interface in the namespace of a process or thread.

    Raises:
        FileNotFoundError: The process has ended.
    """
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    rows = ((name.strip(), counters.split()) for name, _, counters in (line.partition(":") for line in lines))
    return {name: (int(counters[0]), int(counters[1])) for name, counters in rows}


def arrived_bytes(routers: Mapping[str, int], links: Iterable[str]) -> dict[str, int]:
    """Return, for each link, the bytes that the kernel counted at its end.

    `routers` has the process or thread that holds the namespace of each site's router; one that has ended is left out.
    """
    counted: dict[str, dict[str, tuple[int, int]]] = {}
    for site, pid in routers.items():
        with suppress(FileNotFoundError):  # a swap has removed the site
            counted[site] = received(pid)
    ends = ((link, *link_ends(link)) for link in links)
    return {link: counted[b][a][0] for link, a, b in ends if a in counted.get(b, {})}


def mac_of(address: IPv4Interface) -> str:
    """Return the locally administered MAC address that is derived from an IP address."""
    return "02:00:" + address.ip.packed.hex(":")


class NamespaceNode(Node):
    """A Mininet node that is the network namespace held by the process or thread `holder`.

    Programs started by `popen` or `cmd` run in a UTS namespace with the mark of the node's `network`. So they are found
    and killed with the network even if they clear their environment.
    """

    def __init__(self, name: str, holder: ProcessIdentity, network: str = "", **params: Any) -> None:
        self.holder = holder
        self.labels = {label.ENVIRONMENT: network} if network else {}
        self._netlink: Netlink | None = None
        super().__init__(name, **params)

    @property
    def netns(self) -> Path:
        """The namespace's file in /proc."""
        return self.holder.folder / "ns/net"

    @property
    def held(self) -> bool:
        """True if the holder is still there, and its number does not belong to another process."""
        return self.holder.is_running and held_by(self.holder.pid)

    def inside(self, make: Callable[[], T]) -> T:
        """Call `make` in the namespace and return its result. Raises ProcessLookupError if the holder has ended."""
        return inside(self.holder, make)

    @property
    def netlink(self) -> Netlink:
        """A netlink socket in the namespace, opened at first use."""
        if self._netlink is None:
            self._netlink = Netlink(self.holder)
        return self._netlink

    def configure(self, settings: Iterable[str]) -> None:
        """Apply kernel settings in the namespace, written as for sysctl: `net.ipv4.ip_forward=1`.

        Settings of IPv6 are skipped on a kernel without IPv6.

        Raises:
            SettingRefused: The kernel lacks the setting or rejects the value.
        """
        self.inside(lambda: _write_settings(settings))

    def received_bytes(self) -> dict[str, int]:
        """Return the bytes that the kernel received on each interface.

        A super-packet counts once, without the headers that each of its segments would have on a wire: 4 % less than
        the wire for full-size segments.
        """
        return {name: size for name, (size, _) in received(self.holder.pid).items()}

    def unroutable_packets(self) -> int:
        """Return the number of packets without a route, both own and forwarded ones.

        The kernel counts a forwarded one in `InNoRoutes`, which is in another file than the counters of own packets.
        """
        return self._counts("Ip")["OutNoRoutes"] + self._counts("IpExt", "netstat")["InNoRoutes"]

    def tcp_figures(self) -> dict[str, int]:
        """Return TCP's counters over all sockets: segments sent, segments retransmitted, connections established."""
        counts = self._counts("Tcp")
        return {
            "sent_segments": counts["OutSegs"],
            "resent_segments": counts["RetransSegs"],
            "connections": counts["CurrEstab"],
        }

    def _counts(self, protocol: str, file: str = "snmp") -> dict[str, int]:
        lines = (self.holder.folder / "net" / file).read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith(f"{protocol}:"))
        return dict(zip(names, map(int, values), strict=True))

    # What Mininet calls -------------------------------------------------------------------------------------------

    def startShell(self, mnopts: str | None = None) -> None:
        """Skip Mininet's start of the shell; `cmd` starts it."""
        self.pid = self.holder.pid

    def _shell(self) -> None:
        if self.shell is None:
            super().startShell("-cd")
            self.pid = self.holder.pid

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        """Replace Mininet's new namespace for the shell by the node's namespace, and label the process.

        This process may have opened another network since, whose label it would pass on.
        """
        params["env"] = {**(params.get("env") or os.environ), **self.labels}
        if cmd[:2] == ["mnexec", "-cdn"]:
            cmd = [*self._entering(), "mnexec", "-cd", *cmd[2:]]
        return super()._popen(cmd, **params)

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        """Run a command in the node's shell, which is started first where there is none; return its output."""
        self._shell()
        return str(super().cmd(*args, **kwargs))

    def sendCmd(self, *args: Any, **kwargs: Any) -> None:
        """Start a command in the node's shell, which is started first where there is none."""
        self._shell()
        super().sendCmd(*args, **kwargs)

    def popen(self, *args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        """Start a process in the node's network namespace and the host's file system, so images need no tools."""
        kwargs.setdefault("mncmd", self._entering())
        return super().popen(*args, **kwargs)

    def _entering(self) -> list[str]:
        """Return the command prefix that enters this node. The command keeps its process number."""
        enter = ["nsenter", f"--net={self.netns}", "--"]
        return [*enter, *label.marked([], self.labels)] if self.labels else enter

    def terminate(self) -> None:
        """Close the netlink socket and the shell. The namespace ends with the process that holds it."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None
        if self.shell is not None:
            self.shell.kill()
            self.cleanup()


def _write_settings(settings: Iterable[str]) -> None:
    has_ipv6 = (SETTINGS / "net" / "ipv6" / "conf").is_dir()
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.startswith("net.ipv6.") and not has_ipv6:
            continue
        try:
            (SETTINGS / Path(*name.split("."))).write_text(value)
        except OSError as error:
            raise SettingRefused(setting, error) from error


class NamespaceHost(NamespaceNode):
    """A node that holds a namespace of its own."""

    def __init__(self, name: str, network: str = "", **params: Any) -> None:
        self._namespace = Namespace()
        super().__init__(name, self._namespace.holder, network, **params)

    def terminate(self) -> None:
        """Close the node and its namespace."""
        super().terminate()
        self._namespace.close()


class Router(NamespaceHost):
    """A site's router and switch: a forwarding namespace with a device `lan` for the workers' ports."""

    switch: Switch

    def failure(self) -> str | None:
        """Return why the site's switch is dead, or None if all is well."""
        return self.switch.failure() if hasattr(self, "switch") else None

    def terminate(self) -> None:
        """Close the site's switch, the node and its namespace."""
        if hasattr(self, "switch"):
            self.switch.close()
        super().terminate()


class ContainerHost(NamespaceNode):
    """A worker's container as a Mininet host: the namespace is the container's, joined by its first process."""

    #: The files that give programs started here the workers' names.
    names: Names | None = None

    def _entering(self) -> list[str]:
        return [*super()._entering(), *(self.names.entering() if self.names is not None else ())]


class Interface(Intf):
    """An interface that is configured over netlink instead of ifconfig in a shell."""

    @cached_property
    def index(self) -> int:
        """The kernel's index of the interface, constant as long as the interface exists."""
        return int(self.node.netlink.index(self.name))

    def config(self, **params: Any) -> dict[str, Any]:
        """Set nothing: interfaces get their addresses over netlink."""
        return {}

    def setIP(self, ipstr: str, prefixLen: int | None = None) -> None:
        """Add an IPv4 address, given as `10.0.0.1/24` or with `prefixLen`; without a length it is a host's, 32."""
        address, _, length = ipstr.partition("/")
        self.ip, self.prefixLen = address, int(length or prefixLen or 32)
        given = IPv4Interface((self.ip, self.prefixLen))
        self.node.netlink.apply(device.address(self.index, given))

    def updateIP(self) -> str | None:
        """Return the address that Mininet's prompt substitutes for a name; Mininet's own would call ifconfig."""
        return str(self.ip) if self.ip else None

    def up(self) -> None:
        """Bring the interface up. Its link is shaped before, so no packet ever passes it unshaped."""
        self.node.netlink.apply(device.up(self.index))

    def know(self, peer: IPv4Address, mac: str) -> None:
        """Add the peer as a permanent neighbour: its MAC address is never asked for."""
        self.node.netlink.apply(device.neighbour(self.index, peer, mac))

    def carry(self, mtu: int) -> None:
        """Set the MTU in bytes."""
        self.node.netlink.apply(device.mtu(self.index, mtu))

    def delete(self) -> None:
        """Remove the interface and its peer. Nothing happens if the peer or the node's namespace went first."""
        try:
            self.node.netlink.apply(device.gone(self.index))
        except ProcessLookupError:
            pass  # the namespace's holder has ended, and the interface with it
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
        self.node.delIntf(self)
        self.link = None


class Veth(Link):
    """A veth pair with each end created in its node's namespace; both ends are down."""

    def __init__(self, node1: NamespaceNode, node2: NamespaceNode, **params: Any) -> None:
        super().__init__(node1, node2, **{**params, "intf": Interface})

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: NamespaceNode | None = None,
        node2: NamespaceNode | None = None,
        deleteIntfs: bool = True,
    ) -> None:
        """Make a veth pair, one end in each node's namespace, by netlink."""
        assert node1 is not None
        assert node2 is not None
        with opened(node2.holder) as namespace:
            node1.netlink.apply(device.veth(intfname1, addr1, intfname2, addr2, namespace))
