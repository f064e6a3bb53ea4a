"""Mininet nodes whose namespace outlives no crash, and whose shell starts when first asked for.

Mininet starts an interactive bash for every node and speaks to it for every setting: about 50 ms a node and 5 ms a
command. Here a node is only its network namespace; interfaces, addresses and routes go through netlink, and the shell
comes with the first `cmd()`, so Mininet's prompt and scripts work as ever.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterable
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
from testbed.emulation.network.namespace import Namespace, held_by, inside_of, opened
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.network.switch import Switch
from testbed.emulation.process import ProcessIdentity

T = TypeVar("T")

#: Where the kernel shows its settings, of the reader's own network namespace.
SETTINGS = Path("/proc/sys")


class SettingRefused(EmulationError):
    """The kernel does not have a setting, or does not take its value. `field` is its name, `given` the value."""

    def __init__(self, setting: str, error: OSError) -> None:
        name, _, value = setting.partition("=")
        if error.errno == errno.ENOENT:
            why = "this machine's kernel does not have it: use Linux 5.4 or later, built with full networking"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            why = f"{error.strerror}; `testbed doctor --fix` makes {SETTINGS} writable"
        else:
            why = f"the kernel refuses it ({error.strerror}); `testbed doctor` says what this machine can do"
        super().__init__(f"the kernel setting {setting} can't be applied: {why}", field=name, given=value)


def received_bytes(pid: int) -> dict[str, int]:
    """Interface → bytes the kernel has received on it, in the network namespace of a process or thread."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    rows = (line.partition(":") for line in lines)
    return {name.strip(): int(counters.split()[0]) for name, _, counters in rows}


def mac_of(address: IPv4Interface) -> str:
    """A MAC address that follows from an IP address, locally administered."""
    return "02:00:" + address.ip.packed.hex(":")


class NamespaceNode(Node):
    """A node that is the network namespace that the process or thread `holder` holds. Nothing happens in it before it
    is asked.

    What is started in it by `popen` or `cmd` is in a UTS namespace with the mark of its `network`, so it is found and
    ended with that also where it has cleared its environment.
    """

    def __init__(self, name: str, holder: ProcessIdentity, network: str = "", **params: Any) -> None:
        self.holder = holder
        self._labels = {label.ENVIRONMENT: network} if network else {}
        self._netlink: Netlink | None = None
        super().__init__(name, **params)

    @property
    def netns(self) -> Path:
        """The namespace's file."""
        return self.holder.folder / "ns/net"

    @property
    def held(self) -> bool:
        """Whether what holds the namespace is still there, and not another process that was given its number."""
        return self.holder.is_running and held_by(self.holder.pid)

    def inside(self, make: Callable[[], T]) -> T:
        """What `make` returns in the namespace; ProcessLookupError when what holds it has ended."""
        return inside_of(self.holder, make)

    @property
    def netlink(self) -> Netlink:
        """A netlink socket in the namespace, opened at first use."""
        if self._netlink is None:
            self._netlink = Netlink(self.holder)
        return self._netlink

    def interface_index(self, name: str) -> int:
        """The kernel's index of an interface; OSError when there is none of this name."""
        return self.netlink.index(name)

    def configure(self, settings: Iterable[str]) -> None:
        """Put kernel settings in force in the namespace, each as sysctl takes it: `net.ipv4.ip_forward=1`.

        A kernel without IPv6 needs none of those of IPv6.

        Raises:
            SettingRefused: The kernel has no such setting, or does not take the value.
        """
        self.inside(lambda: _write_settings(settings))

    def received_bytes(self) -> dict[str, int]:
        """Interface → bytes the kernel has received on it. A super-packet counts once, without the headers that
        each of its segments would have had on a wire: 4 % less than the wire for full-size segments."""
        return received_bytes(self.holder.pid)

    def unroutable_packets(self) -> int:
        """Packets for which there was no route, of the node's own and of those it was to forward."""
        counts = self._counts("Ip")
        return counts["OutNoRoutes"] + counts["InAddrErrors"]

    def tcp_figures(self) -> dict[str, int]:
        """What TCP has counted over all the namespace's sockets: segments sent, and of those sent again; connections
        that are established now."""
        counts = self._counts("Tcp")
        return {
            "sent_segments": counts["OutSegs"],
            "resent_segments": counts["RetransSegs"],
            "connections": counts["CurrEstab"],
        }

    def _counts(self, protocol: str) -> dict[str, int]:
        lines = (self.holder.folder / "net/snmp").read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith(f"{protocol}:"))
        return dict(zip(names, map(int, values), strict=True))

    # What Mininet calls -------------------------------------------------------------------------------------------

    def startShell(self, mnopts: str | None = None) -> None:
        """Mininet starts the shell with the node; here that waits for `cmd`."""
        self.pid = self.holder.pid

    def _shell(self) -> None:
        if self.shell is None:
            super().startShell("-cd")
            self.pid = self.holder.pid

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        """Mininet would unshare a namespace for the shell; it joins the node's instead."""
        if cmd[:2] == ["mnexec", "-cdn"]:
            cmd = [*self._entering(), "mnexec", "-cd", *cmd[2:]]
        return super()._popen(cmd, **params)

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        self._shell()
        return str(super().cmd(*args, **kwargs))

    def sendCmd(self, *args: Any, **kwargs: Any) -> None:
        self._shell()
        super().sendCmd(*args, **kwargs)

    def popen(self, *args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        """A process in the node's network namespace and the host's file system, so images need no tools."""
        kwargs.setdefault("mncmd", self._entering())
        return super().popen(*args, **kwargs)

    def _entering(self) -> list[str]:
        """Return the words before a command that is to run here. The command keeps the process number."""
        enter = ["nsenter", f"--net={self.netns}", "--"]
        return [*enter, *label.marked([], self._labels)] if self._labels else enter

    def terminate(self) -> None:
        """Close what was opened; the namespace goes with the process that holds it."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None
        if self.shell is not None:
            self.shell.kill()
            self.cleanup()


def _write_settings(settings: Iterable[str]) -> None:
    has_ipv6 = (SETTINGS / "net" / "ipv6").is_dir()
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.startswith("net.ipv6.") and not has_ipv6:
            continue
        try:
            (SETTINGS / Path(*name.split("."))).write_text(value)
        except OSError as error:
            raise SettingRefused(setting, error) from error


class NamespaceHost(NamespaceNode):
    """A node with a namespace of its own."""

    def __init__(self, name: str, network: str = "", **params: Any) -> None:
        self._namespace = Namespace()
        super().__init__(name, self._namespace.holder, network, **params)

    def terminate(self) -> None:
        super().terminate()
        self._namespace.close()


class Router(NamespaceHost):
    """A site's router and switch: one namespace that forwards, with a device `lan` for the workers' ports."""

    switch: Switch

    def terminate(self) -> None:
        if hasattr(self, "switch"):
            self.switch.close()
        super().terminate()


class ContainerHost(NamespaceNode):
    """A worker's container as a Mininet host: the namespace is the container's, joined by its first process."""

    #: What gives programs that are started here the workers' names.
    names: Names | None = None

    def _entering(self) -> list[str]:
        return [*super()._entering(), *(self.names.entering() if self.names is not None else ())]


class Interface(Intf):
    """An interface that is set up over netlink, not by ifconfig in a shell."""

    @cached_property
    def index(self) -> int:
        """The kernel's number of it, the same as long as it is there."""
        return int(self.node.netlink.index(self.name))

    def config(self, **params: Any) -> dict[str, Any]:
        return {}

    def setIP(self, ipstr: str, prefixLen: int | None = None) -> None:
        address, _, length = ipstr.partition("/")
        self.ip, self.prefixLen = address, int(length or prefixLen or 32)
        given = IPv4Interface((self.ip, self.prefixLen))
        self.node.netlink.apply(device.address(self.index, given))

    def updateIP(self) -> str | None:
        """What Mininet's prompt puts in the place of a name; it would ask ifconfig."""
        return str(self.ip) if self.ip else None

    def up(self) -> None:
        """Bring it up. A link is shaped before this, so no packet ever passes it unshaped."""
        self.node.netlink.apply(device.up(self.index))

    def know(self, peer: IPv4Address, mac: str) -> None:
        """Enter the peer as a permanent neighbour."""
        self.node.netlink.apply(device.neighbour(self.index, peer, mac))

    def carry(self, mtu: int) -> None:
        """Let it send packets of so many bytes at most."""
        self.node.netlink.apply(device.mtu(self.index, mtu))

    def delete(self) -> None:
        """Remove it, and with it its peer; nothing to do when the peer went first, or the node's namespace."""
        try:
            self.node.netlink.apply(device.gone(self.index))
        except ProcessLookupError:
            pass  # what held the namespace has ended, and took the interface with it
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
        self.node.delIntf(self)
        self.link = None


class Veth(Link):
    """A veth pair made with each end in its node's namespace; both ends down."""

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
        assert node1 is not None
        assert node2 is not None
        with opened(node2.holder) as namespace:
            node1.netlink.apply(device.veth(intfname1, addr1, intfname2, addr2, namespace))
