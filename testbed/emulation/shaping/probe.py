"""Chooses a backend that this kernel can run, by trying it out, and opens it."""

from __future__ import annotations

import os
import platform
from contextlib import closing
from typing import Literal

from testbed.emulation.host.kernel import package_here
from testbed.emulation.network import device
from testbed.emulation.network.namespace import Namespace, opened
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.shaping.base import Port, Shaper, ShapingError
from testbed.emulation.shaping.netem import NetemShaper
from testbed.emulation.shaping.tc import limit_rate
from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import LinkState

BACKENDS: dict[str, type[Shaper]] = {"netem": NetemShaper, "userspace": UserspaceShaper}

#: A state with every kind of value, so that the probe covers what a run needs.
_TRIAL = LinkState(rate_bps=10e6, delay_s=0.01, jitter_s=0.001, loss=0.01)


def available_backends() -> dict[str, str | None]:
    """Return each backend with None if it works here, or else the reason and the remedy; the best comes first."""
    return {name: _complaint(backend) for name, backend in BACKENDS.items()}


def open_shaper(choice: Literal["auto", "netem", "userspace"] = "auto") -> Shaper:
    """Return a shaper that works here. Raises ShapingError with the remedy if there is none."""
    if choice != "auto":
        complaint = _complaint(BACKENDS[choice])
        if complaint is not None:
            raise ShapingError(f"the {choice} shaping backend does not work on this machine: {complaint}")
        return BACKENDS[choice]()
    complaints = {}
    for name, backend in BACKENDS.items():
        complaint = _complaint(backend)
        if complaint is None:
            return backend()
        complaints[name] = complaint
    listed = " ".join(f"{name}: {complaint}" for name, complaint in complaints.items())
    raise ShapingError(f"no shaping backend works on this machine. {listed}")


def _complaint(backend: type[Shaper]) -> str | None:
    """Shape and change two links of a scratch namespace; return None on success, else the remedy."""
    if os.geteuid() != 0:
        return "shaping links needs root; run with sudo."
    try:
        with closing(Namespace()) as scratch, backend() as shaper:
            _make_site(scratch)
            if (complaint := _worker_complaint(scratch)) is not None:
                return complaint
            wan = Port("wan", scratch.path, "lo")
            access = Port("access", scratch.path, "w0", bridge="lan", address="10.0.0.2")
            shaper.attach({wan: _TRIAL, access: _TRIAL})
            shaper.apply({"wan": _TRIAL.scaled(2), "access": _TRIAL.scaled(2)})
            shaper.counters()
    except ShapingError as error:
        if backend is not NetemShaper:
            return str(error)
        return f"{error}. {_kernel_remedy('sch_netem', 'sch_htb')}, or use the userspace backend."
    except (RuntimeError, OSError) as error:
        return f"a scratch network namespace with a bridge could not be created: {error}"
    return None


def _make_site(scratch: Namespace) -> None:
    """Create a small site in the namespace: a router's way out (`lo`) and a worker's wire to its bridge."""
    with closing(Netlink(scratch.path)) as netlink, opened(scratch.holder) as there:
        netlink.apply(device.bridge("lan"), device.veth("w0", None, "eth0", None, there))
        netlink.apply(device.up(netlink.index("lo")), device.plugged(netlink.index("w0"), netlink.index("lan")))


def _worker_complaint(scratch: Namespace) -> str | None:
    """Limit the rate of the worker's own interface, as both backends need; return None on success, else the remedy."""
    with closing(Netlink(scratch.path)) as netlink:
        index = netlink.index("eth0")
        try:
            netlink.apply(limit_rate(index, _TRIAL.rate_bps))
        except OSError as error:
            why = f"the rate of a worker's interface could not be limited: {error.strerror}"
            return f"{why}. {_kernel_remedy('sch_tbf')}."
    return None


def _kernel_remedy(*modules: str) -> str:
    """Return how to get queueing disciplines for this kernel, by the distribution that built it."""
    release, package = platform.release(), package_here()
    if package is None:
        how = f"rebuild it with {' and '.join(f'CONFIG_NET_{module.upper()}' for module in modules)}"
    elif package.restart:
        how = f"install {package.name} and restart with that kernel"
    else:
        how = f"install {package.name} and run modprobe -a {' '.join(modules)}"
    return f"Kernel {release} lacks {' or '.join(modules)}: {how}"
