"""Which backend this kernel can really run, found by trying, and opening it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Literal

from testbed.emulation.kernel import package_here
from testbed.emulation.shaping.base import Port, Shaper, ShapingError
from testbed.emulation.shaping.netem import NetemShaper
from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import LinkState

BACKENDS: dict[str, type[Shaper]] = {"netem": NetemShaper, "userspace": UserspaceShaper}

#: Has every part of a state, so the probe meets what a run will ask for.
_TRIAL = LinkState(rate_bps=10e6, delay_s=0.01, jitter_s=0.001, loss=0.01)

#: A site in small: a router's way out, and a worker's port on its bridge. `cat` holds the namespace for as long as its
#: standard input is open: ours.
_SCRATCH = """
set -e
ip link set lo up
ip link add lan type bridge
ip link add w0 type veth peer name eth0
ip link set w0 master lan
echo ready
exec cat
"""


def available_backends() -> dict[str, str | None]:
    """Each backend's name, and None if it works here, else why not and what to do. Order: best first."""
    return {name: _complaint(backend) for name, backend in BACKENDS.items()}


def open_shaper(choice: Literal["auto", "netem", "userspace"] = "auto") -> Shaper:
    """A shaper that works here. Raises ShapingError, whose text is the remedy, rather than leave a link
    unshaped.
    """
    if choice != "auto":
        complaint = _complaint(BACKENDS[choice])
        if complaint is not None:
            raise ShapingError(f"the {choice} shaping backend does not work here: {complaint}")
        return BACKENDS[choice]()
    complaints = {}
    for name, backend in BACKENDS.items():
        complaint = _complaint(backend)
        if complaint is None:
            return backend()
        complaints[name] = complaint
    raise ShapingError("no shaping backend works here. " + " ".join(f"{n}: {c}" for n, c in complaints.items()))


def _complaint(backend: type[Shaper]) -> str | None:
    """Shape and change two links of a scratch namespace; None if that went well, else the remedy."""
    if os.geteuid() != 0:
        return "shaping links needs root; run it with sudo."
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", _SCRATCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as scratch:
        assert scratch.stdin and scratch.stdout and scratch.stderr
        if scratch.stdout.readline().strip() != "ready":
            why = scratch.stderr.read().strip()
            return f"no scratch network namespace with a bridge can be made; see that iproute2 is installed: {why}"
        try:
            with backend() as shaper:
                netns = Path(f"/proc/{scratch.pid}/ns/net")
                shaper.attach(Port("wan", netns, "lo"), _TRIAL)
                shaper.attach(Port("access", netns, "w0", bridge="lan", address="10.0.0.2"), _TRIAL)
                shaper.apply({"wan": _TRIAL.scaled(2), "access": _TRIAL.scaled(2)})
                shaper.counters()
        except ShapingError as error:
            return f"{error}. {_kernel_remedy()}" if backend is NetemShaper else str(error)
        finally:
            scratch.stdin.close()
    return None


def _kernel_remedy() -> str:
    """How this kernel may come to have netem, by who made it."""
    release, package = platform.release(), package_here()
    if package is None:
        how = "rebuild it with CONFIG_NET_SCH_NETEM and CONFIG_NET_SCH_HTB"
    elif package.restart:
        how = f"install {package.name} and restart with that kernel"
    else:
        how = f"install {package.name} and run modprobe sch_netem"
    return f"Kernel {release} lacks sch_netem or sch_htb; {how}; or use the userspace backend."
