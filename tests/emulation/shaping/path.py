"""A path of four namespaces, source ─ left ═ right ─ target, whose middle is the link to shape, both ways."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path as FilePath

from testbed.emulation.network.namespace import inside
from testbed.emulation.shaping.base import Port
from testbed.link import MTU_FRAME_BYTES
from tests.measuring import judge
from tests.waiting import until

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
#: busy host would distort them. It ends with the last of as many as are sent. Else, when nothing more came for so long
#: after their sender ended, and with it this program's input.
RECEIVE = """
import select, socket, struct, sys
quiet_s, left = float(sys.argv[1]), int(sys.argv[2])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as into:
    into.setsockopt(socket.SOL_SOCKET, 35, 1)
    into.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
    into.bind(("0.0.0.0", 7000))
    print("ready", flush=True)
    sending = [sys.stdin]
    while left:
        ready, _, _ = select.select([into, *sending], [], [], None if sending else quiet_s)
        if into in ready:
            frame, ((_, _, stamp),), _, _ = into.recvmsg(2048, 64)
            seconds, nanoseconds = struct.unpack("qq", stamp)
            print(int.from_bytes(frame[:4], "big"), seconds + nanoseconds * 1e-9)
            left -= 1
        elif ready:
            sending = []
        else:
            break
"""
#: How long a link may be quiet before what has not come is taken for lost, of frames that wait for no more than 50 ms
#: at a time.
QUIET_S = 2.0
#: How long all of what is sent may take to be answered.
ANSWERED_S = 60.0


def run(*command: str, check: bool = True, given: str | None = None) -> str:
    """Return a command's standard output; `given` is its standard input."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout


def forward_version_4_alone() -> None:
    """Set the namespace that this is called in to forward IPv4; a kernel without IPv6 has none to turn off."""
    if (ipv6 := FilePath("/proc/sys/net/ipv6/conf/default/disable_ipv6")).exists():
        ipv6.write_text("1")
    FilePath("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Path:
    """Names, ports and tools of one path; interfaces are named by the node at their other end.

    Paths that one process has at the same time need different names.
    """

    def __init__(self, name: str = "") -> None:
        self.prefix = f"tb{os.getpid()}{name}"

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
        return _answers(run(*self.command("source", *words), check=False))

    def answered(self, count: int, interval_s: float = 0.02) -> list[tuple[int, float]]:
        """Return the answers of `ping` once `count` have come, however late.

        Without `-w`, ping waits for no more than twice the longest round trip. It goes on sending, so a lost packet
        shows as a missing number.
        """
        words = ["ping", "-n", "-c", str(count), "-i", str(interval_s), "-w", f"{ANSWERED_S:g}", TARGET]
        return _answers(run(*self.command("source", *words), check=False))[:count]  # the last come together, perhaps

    def judge_round_trip(self, low_ms: float, high_ms: float) -> None:
        """Judge the least of ten pings, which other packets hold up least."""
        judge(lambda: min((ms for _, ms in self.ping(10)), default=inf), low_ms, high_ms, "ms")

    @contextmanager
    def server(self) -> Iterator[None]:
        """Run an iperf3 server at the target, which listens once this yields."""
        words = self.command("target", "iperf3", "--server", "--one-off")
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            try:
                until(lambda: ":5201" in run(*self.command("target", "ss", "-Hltn")))
                yield
            finally:
                process.terminate()

    def build(self) -> None:
        """In few processes: in the guest, where each takes a tenth of a second, eighty of them took 15 s."""
        for node in NODES:
            run("ip", "netns", "add", f"{self.prefix}-{node}")
            inside(self.namespace(node), forward_version_4_alone)
        doing = {node: ["link set lo up"] for node in NODES}
        for number, (near, far) in enumerate(pairwise(NODES), start=1):
            doing[near].insert(0, f"link add {far} type veth peer name {near} netns {self.prefix}-{far}")
            for node, interface, host in ((near, far, 1), (far, near, 2)):
                doing[node] += [
                    f"address add 10.210.{number}.{host}/24 dev {interface}",
                    f"link set {interface} up",
                ]
        doing["source"] += ["route add default via 10.210.1.2"]
        doing["left"] += ["route add 10.210.3.0/24 via 10.210.2.2"]
        doing["right"] += ["route add 10.210.1.0/24 via 10.210.2.1"]
        doing["target"] += ["route add default via 10.210.3.1"]
        for node, lines in doing.items():
            self.configure(node, lines)
        self.ping(2)
        self.keep_neighbours()

    def configure(self, node: str, lines: Iterable[str]) -> None:
        """Carry out the lines of an `ip` batch at a node, in one process."""
        run("ip", "-netns", f"{self.prefix}-{node}", "-batch", "-", given="\n".join(lines))

    def keep_neighbours(self) -> None:
        """Ask for no address again: a request that meets the shaper would be one frame more than a test sent."""
        for node in NODES:
            known = run("ip", "-netns", f"{self.prefix}-{node}", "neighbour").splitlines()
            fields = [line.split() for line in known]
            self.configure(
                node, [f"neighbour replace {each[0]} dev {each[2]} lladdr {each[4]} nud permanent" for each in fields]
            )

    def remove(self) -> None:
        for node in NODES:
            run("ip", "netns", "delete", f"{self.prefix}-{node}", check=False)


@contextmanager
def built_path(name: str = "") -> Iterator[Path]:
    """Yield a path while it exists."""
    path = Path(name)
    try:
        path.build()
        yield path
    finally:
        path.remove()


def _answers(said: str) -> list[tuple[int, float]]:
    answers = [line for line in said.splitlines() if "icmp_seq=" in line and "time=" in line]
    return [(int(line.split("icmp_seq=")[1].split()[0]), float(line.split("time=")[1].split()[0])) for line in answers]


def burst(
    path: Path, count: int, *, size: int = PAYLOAD, quiet_s: float = QUIET_S, ready: Callable[[], None] = lambda: None
) -> list[tuple[int, float]]:
    """Send datagrams as fast as possible, and return the number and the time of arrival of each that came.

    They are full frames by default, and leave at once after `ready` returns. When all are sent, a link that is quiet
    for `quiet_s` has lost the others.
    """
    receive = path.command("target", "python3", "-c", RECEIVE, str(quiet_s), str(count))
    send = path.command("source", "python3", "-c", SEND, str(count), str(size), TARGET)
    with (
        subprocess.Popen(receive, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver,
        subprocess.Popen(send, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender,
    ):
        for process in (receiver, sender):
            assert process.stdout and process.stdout.readline() == "ready\n"
        ready()
        sender.communicate("go\n")
        assert sender.returncode == 0 and receiver.stdin and receiver.stdout
        receiver.stdin.close()
        return [(int(n), float(at)) for n, at in (line.split() for line in receiver.stdout)]
