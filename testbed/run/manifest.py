"""A run's manifest: its inputs, seed, versions and host."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from testbed.emulation.containers import documentation
from testbed.resources import IS_CHECKOUT, SHARE, __version__
from testbed.run.directory import RunDirectory
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology
from testbed.spec.train import TrainSection
from testbed.trace.csv import columns_of
from testbed.trace.text import MOST_BYTES, text_of

PACKAGES = ("docker", "networkx", "numpy", "pydantic", "scipy", "torch")


class Manifest:
    """A run's `manifest.json`: begun by its RunDirectory, with the experiment's inputs, and extended during the run."""

    def __init__(self, directory: RunDirectory, experiment: Experiment, **more: Any) -> None:
        self._directory = directory
        self._value = {
            **(directory.read_whole("manifest.json") or {}),
            "spec": experiment.spec.model_dump(mode="json"),
            "inputs": {str(file): text_of(file, MOST_BYTES) for file in experiment.files},
            "seed": experiment.spec.seed,
            "scale": experiment.spec.scale,
            "git_commit": git_commit(),
            "host": host_facts(),
            **data_facts(experiment),
            **traffic_facts(experiment.topology),
            **queue_facts(experiment.topology),
        }
        self.add(**more)

    def add(self, **more: Any) -> None:
        """Add fields, and write the file."""
        self._value |= more
        self._directory.write("manifest.json", self._value)


def data_facts(experiment: Experiment) -> dict[str, Any]:
    """Return the versions of the packages whose documentation is the data set; empty for any other data set.

    Raises:
        DocumentationError: The documentation is not on this machine.
    """
    train = experiment.spec.train
    learns_from = train.data if isinstance(train, TrainSection) else ""
    return {"data": documentation.described()} if learns_from == "documentation" else {}


def traffic_facts(topology: Topology) -> dict[str, Any]:
    """Return the links' declared background traffic, and the mean bit/s that it leaves free; empty without traffic."""
    loaded = {name: link for name, link in topology.links.items() if link.traffic}
    left = {name: next(columns_of(link.trace)).mean * 1e6 for name, link in loaded.items() if link.trace is not None}
    declared = {name: link.traffic_record() for name, link in loaded.items()}
    facts = {"made_of": "rates taken from links, not packets", "left_mean_bps": left, "declared": declared}
    return {"traffic": facts} if loaded else {}


def queue_facts(topology: Topology) -> dict[str, Any]:
    """Return the disciplines of queues that drop packets before they are full, by link; empty without any."""
    queues = {name: link.state.queue for name, link in topology.links.items()}
    disciplines = {name: queue.discipline_record() for name, queue in queues.items() if queue.discipline is not None}
    return {"disciplines": disciplines} if disciplines else {}


def host_facts() -> dict[str, Any]:
    """Return this machine's kernel, processors, memory and package versions."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": {"testbed": __version__} | {name: found for name in PACKAGES if (found := _version(name))},
    }


def git_commit() -> str | None:
    """Return the checkout's commit, with `+` if files differ from it, or None outside a checkout."""
    if not IS_CHECKOUT:
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    # Under sudo the checkout belongs to another user; git reads such a checkout only if it is named as safe.
    command = ["git", "-c", f"safe.directory={SHARE}", "-C", str(SHARE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
