"""The processes that a command comes to, and what each finds in its environment. Pure.

What torchrun sets has the same names and meanings here; `TESTBED_…` says of the network what no such program knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: torchrun's own.
MASTER_PORT = 29500

#: How every worker's interface on the emulated network is named. Left to themselves, gloo, NCCL and TensorPipe (TP)
#: look for one by the host's name, each in its own way.
INTERFACE = "eth0"

#: What starts a process for each of a worker's ranks by itself.
AGENTS = ("torchrun",)
AGENT_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker as programs know it: its name, its site, its address on the emulated network."""

    name: str
    site: str
    address: str


@dataclass(frozen=True, slots=True)
class Rank:
    """A process to start: on which worker, its name in what is printed and kept, and its variables."""

    worker: str
    name: str
    environment: dict[str, str]


def ranks_of(commands: Mapping[str, Sequence[str]], peers: Sequence[Peer], nproc: int) -> list[Rank]:
    """The processes of commands, each by its worker's name, that are to run `nproc` times on each of these workers:
    worker by worker, in the order of their ranks. torchrun is started once on each, and told how many to start."""
    found = []
    for group, peer in enumerate(peers):
        common = _common(peers, group, nproc)
        if is_agent(commands[peer.name]):
            found.append(Rank(peer.name, peer.name, common))
            continue
        for local in range(nproc):
            own = {"RANK": group * nproc + local, "LOCAL_RANK": local, "GROUP_RANK": group}
            sizes = {"WORLD_SIZE": len(peers) * nproc, "LOCAL_WORLD_SIZE": nproc}
            name = peer.name if nproc == 1 else f"{peer.name}.{local}"
            found.append(Rank(peer.name, name, common | {key: str(value) for key, value in (own | sizes).items()}))
    return found


def is_agent(command: Sequence[str]) -> bool:
    """Whether a command is torchrun, by this name or as Python's module."""
    program = command[0].rpartition("/")[2]
    return program in AGENTS or any(option == "-m" and module in AGENT_MODULES for option, module in pairwise(command))


def _common(peers: Sequence[Peer], group: int, nproc: int) -> dict[str, str]:
    """What all processes of a worker find: where they meet, and who else there is."""
    master = {"MASTER_ADDR": peers[0].address, "MASTER_PORT": str(MASTER_PORT)}
    torchrun = {
        "PET_NNODES": str(len(peers)),
        "PET_NODE_RANK": str(group),
        "PET_NPROC_PER_NODE": str(nproc),
        **{f"PET_{name}": value for name, value in master.items()},
    }
    own = {
        "TESTBED_WORKER": peers[group].name,
        "TESTBED_SITE": peers[group].site,
        "TESTBED_PEERS": ",".join(f"{peer.name}={peer.address}" for peer in peers),
    }
    interface = {f"{library}_SOCKET_IFNAME": INTERFACE for library in ("GLOO", "NCCL", "TP")}
    return master | torchrun | interface | own | {"PYTHONUNBUFFERED": "1"}
