"""A path of four namespaces, source ─ left ═ right ─ target, whose middle is the link to shape, both ways."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path as FilePath

from testbed.emulation.shaping.base import Port
from testbed.link import MTU_FRAME_BYTES

NODES = ("source", "left", "right", "target")
TARGET = "10.210.3.2"

#: Bytes of payload in a full frame of UDP over IPv4, and the program that sends or receives them.
PAYLOAD = MTU_FRAME_BYTES - 14 - 20 - 8
SEND = """
import socket, sys
count, size = int(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    for number in range(count):
        out.sendto(number.to_bytes(4, "big") + bytes(size - 4), (sys.argv[3], 7000))
"""
#: Arrivals are timed by the kernel (SO_TIMESTAMPNS, 35) and all kept (SO_RCVBUFFORCE, 33): a receiver kept waiting by a
#: busy host would distort them.
RECEIVE = """
import socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as into:
    into.setsockopt(socket.SOL_SOCKET, 35, 1)
    into.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
    into.bind(("0.0.0.0", 7000))
    print("ready", flush=True)
    try:
        while True:
            frame, ((_, _, stamp),), _, _ = into.recvmsg(2048, 64)
            seconds, nanoseconds = struct.unpack("qq", stamp)
            print(int.from_bytes(frame[:4], "big"), seconds + nanoseconds * 1e-9)
            into.settimeout(float(sys.argv[1]))
    except TimeoutError:
        pass
"""


def run(*command: str, check: bool = True) -> str:
    """A command's standard output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout


class Path:
    """Names, ports and tools of one path; interfaces are named by the node at their other end."""

    def __init__(self) -> None:
        self.prefix = f"tb{os.getpid()}"

    def namespace(self, node: str) -> FilePath:
        return FilePath("/run/netns") / f"{self.prefix}-{node}"

    @property
    def there(self) -> Port:
        return Port("left->right", self.namespace("left"), "right")

    @property
    def back(self) -> Port:
        return Port("right->left", self.namespace("right"), "left")

    def command(self, node: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.prefix}-{node}", *words]

    def ping(self, count: int, interval_s: float = 0.02, *, wait_s: float = 2.0) -> list[tuple[int, float]]:
        """Sequence number and round trip in ms of each answer, in the order of their arrival."""
        words = ["ping", "-n", "-c", str(count), "-i", str(interval_s), "-W", str(wait_s), TARGET]
        lines = run(*self.command("source", *words), check=False).splitlines()
        answers = [line for line in lines if "icmp_seq=" in line and "time=" in line]
        return [
            (int(line.split("icmp_seq=")[1].split()[0]), float(line.split("time=")[1].split()[0])) for line in answers
        ]

    @contextmanager
    def server(self) -> Iterator[None]:
        """An iperf3 server at the target, listening when this yields."""
        words = self.command("target", "iperf3", "--server", "--one-off")
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            try:
                while ":5201" not in run(*self.command("target", "ss", "-Hltn")):
                    time.sleep(0.02)
                yield
            finally:
                process.terminate()

    def build(self) -> None:
        for node in NODES:
            run("ip", "netns", "add", f"{self.prefix}-{node}")
            run(*self.command(node, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"))
            run(*self.command(node, "ip", "link", "set", "lo", "up"))
        for number, (near, far) in enumerate(pairwise(NODES), start=1):
            here, there = (["netns", f"{self.prefix}-{node}"] for node in (near, far))
            run("ip", "link", "add", far, *here, "type", "veth", "peer", "name", near, *there)
            for node, interface, host in ((near, far, 1), (far, near, 2)):
                address = f"10.210.{number}.{host}/24"
                run(*self.command(node, "ip", "address", "add", address, "dev", interface))
                run(*self.command(node, "ip", "link", "set", interface, "up"))
        for node, to, via in (
            ("source", "default", "10.210.1.2"),
            ("left", "10.210.3.0/24", "10.210.2.2"),
            ("right", "10.210.1.0/24", "10.210.2.1"),
            ("target", "default", "10.210.3.1"),
        ):
            run(*self.command(node, "ip", "route", "add", to, "via", via))
        for node in ("left", "right"):
            run(*self.command(node, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
        self.ping(2)
        self.keep_neighbours()

    def keep_neighbours(self) -> None:
        """Ask for no address again: a request that meets the shaper would be one frame more than a test sent."""
        for node in NODES:
            for line in run(*self.command(node, "ip", "neighbour")).splitlines():
                address, _, interface, _, ether, *_ = line.split()
                words = ["ip", "neighbour", "replace", address, "dev", interface, "lladdr", ether, "nud", "permanent"]
                run(*self.command(node, *words))

    def remove(self) -> None:
        for node in NODES:
            run("ip", "netns", "delete", f"{self.prefix}-{node}", check=False)


def burst(
    path: Path, count: int, *, size: int = PAYLOAD, quiet_s: float = 1.5, ready: Callable[[], None] = lambda: None
) -> list[tuple[int, float]]:
    """Send datagrams, full frames as a rule, as fast as can be, at once after `ready` returns; number and time of
    arrival of each that came."""
    receive = path.command("target", "python3", "-c", RECEIVE, str(quiet_s))
    send = path.command("source", "python3", "-c", SEND, str(count), str(size), TARGET)
    with (
        subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver,
        subprocess.Popen(send, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender,
    ):
        for process in (receiver, sender):
            assert process.stdout and process.stdout.readline() == "ready\n"
        ready()
        sender.communicate("go\n")
        assert sender.returncode == 0 and receiver.stdout
        return [(int(n), float(at)) for n, at in (line.split() for line in receiver.stdout)]
