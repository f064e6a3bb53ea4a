"""What this machine can do, each finding with what to do about it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import docker
from docker.errors import DockerException
from rich.console import Console
from rich.table import Table

from testbed.emulation import budget, engine
from testbed.emulation.shaping import available_backends

#: Programs the emulation calls, and the Debian package each comes in.
PROGRAMS = {
    "ethtool": "ethtool",
    "iptables": "iptables",
    "iperf3": "iperf3",
    "mnexec": "mininet",
    "nsenter": "util-linux",
    "ping": "iputils-ping",
    "setpriv": "util-linux",
    "sysctl": "procps",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `remedy` is empty when all is well; `blocks` when nothing runs without it."""

    name: str
    found: str
    remedy: str = ""
    blocks: bool = False


def examine() -> list[Finding]:
    """Look at everything; takes a second, changes nothing."""
    findings = [_root(), _programs(), _mininet(), *_backends(), *_engine()]
    return [*findings, _budget(findings)]


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", "yes")
    return Finding("root", "no", "run it with sudo: making networks and containers needs root", blocks=True)


def _programs() -> Finding:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing:
        return Finding("programs", ", ".join(PROGRAMS))
    packages = " ".join(sorted({PROGRAMS[name] for name in missing}))
    return Finding("programs", f"no {', '.join(missing)}", f"apt-get install {packages}", blocks=True)


def _mininet() -> Finding:
    if importlib.util.find_spec("mininet") is not None:
        return Finding("mininet", "importable")
    remedy = "apt-get install mininet, and make the environment from Debian's Python: `make setup` does both"
    return Finding("mininet", f"not in this Python ({platform.python_version()})", remedy, blocks=True)


def _backends() -> list[Finding]:
    backends = available_backends()
    none = all(complaint is not None for complaint in backends.values())
    chosen = next((name for name, complaint in backends.items() if complaint is None), None)
    return [
        Finding(f"shaping: {name}", "no", complaint, blocks=none)
        if complaint is not None
        else Finding(f"shaping: {name}", "works; this is what `auto` takes" if name == chosen else "works")
        for name, complaint in backends.items()
    ]


def _engine() -> list[Finding]:
    try:
        client = engine.connect()
    except engine.EngineError as error:
        return [Finding("Docker engine", "none answers", str(error), blocks=True)]
    found = f"{client.version()['Version']} at {engine.address()}"
    return [Finding("Docker engine", found), _gpus(client)]


def _gpus(client: docker.DockerClient) -> Finding:
    try:
        runtimes = client.info().get("Runtimes", {})
    except DockerException as error:
        return Finding("GPUs", f"not known: {error}", "see that the engine answers `docker info`")
    if "nvidia" in runtimes:
        return Finding("GPUs", "the engine offers them to containers")
    return Finding("GPUs", "none offered; workers compute on processors")


def _budget(findings: Sequence[Finding]) -> Finding:
    for name, complaint in available_backends().items() if not _blocked(findings) else ():
        if complaint is None and (kept := budget.host_budget(name)) is not None:
            carries = f"{kept.bits_per_second / 1e6:.0f} Mbit/s over all links on {kept.cores} cores ({name})"
            return Finding("budget", carries)
    return Finding("budget", "not measured yet", "the first `testbed run` measures it, in about five seconds")


def _blocked(findings: Sequence[Finding]) -> bool:
    return any(finding.blocks for finding in findings)


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for finding in findings:
        mark = "[red]✗[/]" if finding.blocks else "[yellow]–[/]" if finding.remedy else "[green]✓[/]"
        table.add_row(mark, finding.name, finding.found)
        if finding.remedy:
            table.add_row("", "", f"[italic]{finding.remedy}[/]")
    console = Console(highlight=False)
    console.print(f"{platform.release()} {platform.machine()}, {os.cpu_count()} cores")
    console.print(table)
