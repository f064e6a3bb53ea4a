"""A site's switch: a device `lan` in the router's namespace, with ports that reach only this device.

    worker a --- w0 [ lan: the router's address ] w1 --- worker b

A port passes nothing to another port. Packets between two workers of a site go to the router, which answers ARP for all
(a private VLAN), and come back shaped like all others.

There are three switches. `openvswitch` is Open vSwitch with the kernel's datapath; `openvswitch-user` is Open vSwitch
with its userspace datapath, for kernels without the module; `bridge` is a Linux bridge. These Open vSwitches are
separate from one that runs system-wide: each site has its own daemons, in the router's network namespace, whose kernel
datapaths are separate from the host's, and in a mount namespace with a /run of their own. So they leave nothing in the
file system, carry the network's label, and end with the process that started them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from testbed.emulation.errors import EmulationError
from testbed.emulation.network import device
from testbed.emulation.network.namespace import Namespace, inside
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.process import how_it_ended
from testbed.spec.topology import SwitchChoice, SwitchName

#: The labels of processes that belong to no network.
NO_LABELS: Mapping[str, str] = MappingProxyType({})

#: The router's device.
DEVICE = "lan"

#: Debian's package of Open vSwitch, and its programs that are used.
PACKAGE = "openvswitch-switch"
PROGRAMS = ("ovs-dpctl", "ovs-vsctl", "ovs-vswitchd", "ovsdb-server", "ovsdb-tool")

#: The seconds in which a switch daemon must carry out a command: 0.2 s here, some seconds on a busy host.
ANSWER_DEADLINE_S = 30

#: A database of its own for a switch daemon. To talk to the daemon, enter the same two namespaces, where every tool
#: finds it in its usual place: `nsenter -t PID --net --mount ovs-vsctl show`.
_DATABASE = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir /run/openvswitch
cd /run/openvswitch
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
echo ready
exec ovsdb-server conf.db --remote=punix:db.sock --unixctl=database.ctl --no-chdir -vconsole:emer -vsyslog:off
"""


class SwitchError(EmulationError):
    """A switch cannot be created here. The text says what to do."""


class Switch(ABC):
    """One site's switch. `offload` says whether workers may leave checksums to the device."""

    offload: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, netns: Path, netlink: Netlink, mac: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Create the router's device with this MAC address in a namespace. `netlink` is a socket in that namespace.

        The switch's own processes carry `labels` in their environment.
        """

    @abstractmethod
    def plug(self, interface: str) -> None:
        """Make an interface of the router's namespace a port. The caller shapes it and brings it up later."""

    @abstractmethod
    def unplug(self, interface: str) -> None:
        """Remove a port, whose interface may be gone already."""

    def failure(self) -> str | None:
        """Return why the switch is dead, or None if all is well."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the switch's own processes, if it has any. Calling it twice is allowed."""


class Bridge(Switch):
    """A Linux bridge with isolated ports."""

    def __init__(self, netns: Path, netlink: Netlink, mac: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        self._netlink = netlink
        netlink.apply(device.bridge(DEVICE, mac))
        self._index = netlink.index(DEVICE)

    def plug(self, interface: str) -> None:
        """Make an interface an isolated port of the bridge."""
        port = self._netlink.index(interface)
        self._netlink.apply(device.plugged(port, self._index), device.isolated(port))

    def unplug(self, interface: str) -> None:
        """Do nothing: a bridge forgets a port with its interface."""

    def close(self) -> None:
        """Do nothing: the bridge goes with the namespace."""


class OpenVSwitch(Switch):
    """An Open vSwitch with two daemons of its own and the kernel's datapath."""

    datapath: ClassVar[str] = "system"

    def __init__(self, netns: Path, netlink: Netlink, mac: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Start the daemons and create the device. Raises SwitchError if the daemons do not come up."""
        self._labels = labels
        self._daemons: list[subprocess.Popen[bytes]] = []
        # The kernel kills a daemon as soon as the thread that started it ends, so the switch has a thread for that.
        self._starter = ThreadPoolExecutor(1, "switch")
        try:
            self._start(["nsenter", f"--net={netns}", "unshare", "--mount", "sh", "-c", _DATABASE])
            self._wait_for_database()
            self._tell("--retry", "--no-wait", "init")
            self._start([*self._inside, "ovs-vswitchd", "--no-chdir", "-vconsole:emer", "-vsyslog:off"])
            settings = ("datapath_type=" + self.datapath, "fail_mode=standalone", f'other_config:hwaddr="{mac}"')
            self._tell("add-br", DEVICE, "--", "set", "bridge", DEVICE, *settings)
            # Without this QoS type, the daemon would treat a port's queueing disciplines as its own and remove ours.
            self._hands_off = self._tell("create", "qos", "type=linux-noop")
        except BaseException:
            self.close()
            raise

    def plug(self, interface: str) -> None:
        """Make an interface a protected port, whose queueing disciplines Open vSwitch leaves alone."""
        # A protected port passes nothing to another one.
        properties = ("protected=true", f"qos={self._hands_off}")
        self._tell("add-port", DEVICE, interface, "--", "set", "port", interface, *properties)

    def unplug(self, interface: str) -> None:
        """Remove a port, if the switch has it."""
        self._tell("--if-exists", "del-port", DEVICE, interface)

    def failure(self) -> str | None:
        """Return how one of the daemons ended, or None if both run."""
        ended = next((status for daemon in self._daemons if (status := daemon.poll()) is not None), None)
        if ended is None:
            return None
        remedy = "take the network down and up again, or write `switch: bridge` in the topology"
        return f"a daemon of Open vSwitch {how_it_ended(ended)}; {remedy}"

    def close(self) -> None:
        """Kill the switch's daemons, the last started first."""
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.communicate()
        self._daemons.clear()
        self._starter.shutdown()

    @property
    def _inside(self) -> list[str]:
        """The command prefix that enters the daemons' namespaces."""
        return ["nsenter", f"--target={self._daemons[0].pid}", "--net", "--mount"]

    def _start(self, command: Sequence[str]) -> None:
        """Start a daemon that the kernel kills together with this process."""
        daemon = self._starter.submit(
            lambda: subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C in the terminal does not end it
                env={**os.environ, **self._labels},
            )
        )
        self._daemons.append(daemon.result())

    def _wait_for_database(self) -> None:
        """Wait until the daemon is in its mount namespace. Before, a tool would find the host's Open vSwitch."""
        said = self._daemons[0].stdout
        assert said is not None
        word = said.readline()
        if word != b"ready\n":
            raise SwitchError(f"Open vSwitch's database did not start: {(word + said.read()).decode().strip()}")

    def _tell(self, *words: str) -> str:
        """Run `ovs-vsctl` and return its output. Raises SwitchError if it fails."""
        command = [*self._inside, "ovs-vsctl", f"--timeout={ANSWER_DEADLINE_S}", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SwitchError(
                f"Open vSwitch: `ovs-vsctl {' '.join(words)}` failed: {done.stderr.strip()}. "
                "Write `switch: bridge` in the topology to do without Open vSwitch."
            )
        return done.stdout.strip()


class UserspaceOpenVSwitch(OpenVSwitch):
    """An Open vSwitch whose daemon moves the packets itself.

    It does not fill in checksums that were left to a device, so workers must send complete frames. Otherwise every TCP
    connection hangs, while ping works.
    """

    datapath: ClassVar[str] = "netdev"
    offload: ClassVar[bool] = False


SWITCHES: dict[SwitchName, type[Switch]] = {
    "openvswitch": OpenVSwitch,
    "bridge": Bridge,
    "openvswitch-user": UserspaceOpenVSwitch,
}


def available_switches() -> dict[SwitchName, str | None]:
    """Return each switch with None if it works here, or else the reason and the remedy.

    The order is the one in which `auto` tries them.
    """
    return {name: _complaint(name) for name in SWITCHES}


def choose_switch(choice: SwitchChoice) -> SwitchName:
    """Return the switch for a topology's choice. Raises SwitchError if the named one does not work here."""
    if choice == "auto":
        return next(name for name in SWITCHES if _complaint(name) is None)
    complaint = _complaint(choice)
    if complaint is not None:
        raise SwitchError(f"`switch: {choice}` does not work here: {complaint}; or write `switch: bridge`.")
    return choice


def missing_programs() -> list[str]:
    """Return the programs of Open vSwitch that this machine lacks."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def _complaint(name: SwitchName) -> str | None:
    if name == "bridge":
        return None
    if missing := missing_programs():
        return f"{', '.join(missing)} not installed; apt-get install {PACKAGE}"
    if name == "openvswitch-user":
        return None if Path("/dev/net/tun").exists() else "there is no /dev/net/tun; modprobe tun"
    if os.geteuid() != 0:
        return "testing it needs root; run with sudo"
    # In a scratch namespace, which removes the datapath when it ends. The kernel loads the module by itself.
    try:
        with closing(Namespace()) as scratch:
            command = ["ovs-dpctl", "add-dp", "trial"]
            trial = inside(scratch.path, lambda: subprocess.run(command, capture_output=True, text=True))
    except RuntimeError as error:  # not root
        return str(error)
    if trial.returncode == 0:
        return None
    remedy = "modprobe openvswitch, or use a kernel with CONFIG_OPENVSWITCH"
    said = trial.stderr.strip().splitlines() or [f"ovs-dpctl {how_it_ended(trial.returncode)}"]
    return f"the kernel created no datapath ({said[-1]}); {remedy}"
