"""Pairs of hosts, each joined by two routers, between which both directed links are shaped.

    near ─── left ═══ right ─── far      near->far is shaped where it leaves `left`, far->near where it leaves `right`

Nothing else is on the path, so the shaping alone is measured: no containers, no switch, no shaped access link.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from testbed.emulation.network.namespace import Namespace
from testbed.emulation.shaping import Port

NODES = ("near", "left", "right", "far")


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair; `holders` are the pids whose network namespaces are its nodes."""

    number: int
    holders: dict[str, int]

    def netns(self, node: str) -> Path:
        """Return the path of a node's network namespace."""
        return Path(f"/proc/{self.holders[node]}/ns/net")

    def address(self, host: str) -> str:
        """Return the address of `near` or `far`."""
        net, own = (0, 1) if host == "near" else (2, 2)
        return f"10.{220 + self.number // 64}.{self.number % 64 * 4 + net}.{own}"

    @property
    def ports(self) -> tuple[Port, Port]:
        """The shaped interfaces: near->far, then far->near."""
        there = Port(f"near{self.number}->far{self.number}", self.netns("left"), "right")
        back = Port(f"far{self.number}->near{self.number}", self.netns("right"), "left")
        return there, back

    def command(self, node: str, *words: str) -> list[str]:
        """Return the command that runs `words` in a node's network namespace."""
        return ["nsenter", "-t", str(self.holders[node]), "-n", *words]

    def build(self, joined: bool = False) -> None:
        """Make interfaces, named by the node at their other end, addresses and routes.

        Args:
            joined: The routers are joined already.
        """
        lines: dict[str, list[str]] = {node: ["link set lo up"] for node in NODES}
        block = self.address("near").rsplit(".", 2)[0], self.number % 64 * 4
        for offset, (near, far) in enumerate(pairwise(NODES)):
            if not (joined and near == "left"):
                lines[near].insert(0, f"link add name {far} type veth peer name {near} netns {self.holders[far]}")
            for node, other, host in ((near, far, 1), (far, near, 2)):
                lines[node] += [
                    f"address add {block[0]}.{block[1] + offset}.{host}/24 dev {other}",
                    f"link set dev {other} up",
                ]
        first, middle, last = (f"{block[0]}.{block[1] + offset}" for offset in range(3))
        lines["near"].append(f"route add default via {first}.2")
        lines["left"].append(f"route add {last}.0/24 via {middle}.2")
        lines["right"].append(f"route add {first}.0/24 via {middle}.1")
        lines["far"].append(f"route add default via {last}.1")
        for node in NODES:  # in order: an interface is made from its nearer end
            batch(self.command(node, "ip", "-batch", "-"), lines[node])
        for node in ("left", "right"):
            batch(self.command(node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.disable_ipv6=1"))


def batch(command: Sequence[str], lines: Sequence[str] = ()) -> None:
    """Run a command with `lines` as its input.

    Raises:
        RuntimeError: The command failed; the text has its complaint.
    """
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """Make `count` empty network namespaces, until the context is left."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Namespace())) for _ in range(count)]


@contextmanager
def pairs(count: int, join: Callable[[list[Pair]], None] | None = None) -> Iterator[list[Pair]]:
    """Make `count` pairs, with 2 × count links ready to be shaped, until the context is left.

    Args:
        count: The number of pairs.
        join: Joins the routers of all pairs; without it, veths do.
    """
    with namespaces(count * len(NODES)) as made:
        quads = (made[number * len(NODES) : (number + 1) * len(NODES)] for number in range(count))
        found = [
            Pair(number, {node: space.pid for node, space in zip(NODES, mine, strict=True)})
            for number, mine in enumerate(quads)
        ]
        if join is not None:
            join(found)
        for pair in found:
            pair.build(joined=join is not None)
        yield found
