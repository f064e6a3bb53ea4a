"""This machine's connection to the cluster that is up here: its tasks and its agents."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testbed.run.errors import CannotRun
from testbed.scaleout.agent import HostAgent, make_run
from testbed.scaleout.node import HEAD_PORT, RESOURCE, environment, read


@contextmanager
def connected() -> Iterator[Any]:
    """Ray's module, connected while it is entered. CannotRun where no cluster is up, or Ray is not installed."""
    node = read()
    os.environ.update(environment())  # Ray reads it as it is imported, and has no other way to be told
    try:
        import ray
    except ImportError as error:
        raise CannotRun("Ray is not installed here; `./setup.sh scaleout` installs it") from error
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=f"{node.head}:{HEAD_PORT}",
            _node_ip_address=node.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        raise CannotRun(f"the cluster's head does not answer: {error}; `testbed cluster down` and up again") from error
    signal.signal(signal.SIGTERM, terminated)  # Ray puts one of its own in its place
    try:
        yield ray
    finally:
        ray.shutdown()


def hosts_alive(ray: Any) -> dict[str, str]:
    """The hosts that Ray takes for alive, by name: each one's address."""
    names: dict[str, str] = {}
    for node in ray.nodes():
        if node["Alive"]:
            hosts = [each.removeprefix("host:") for each in node["Resources"] if each.startswith("host:")]
            names |= dict.fromkeys(hosts, node["NodeManagerAddress"])
    return names


def run_task(ray: Any) -> Any:
    """The task of one run. It takes a host for itself; what is lost with one is the caller's to make again."""
    return ray.remote(num_cpus=0, resources={RESOURCE: 1}, max_retries=0)(make_run)


def agent(ray: Any, host: str) -> Any:
    """A host's agent, which ends with its last reference."""
    return ray.remote(num_cpus=0, resources={f"host:{host}": 0.001}, max_concurrency=2)(HostAgent).remote()
