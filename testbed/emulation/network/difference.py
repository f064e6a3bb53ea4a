"""The difference between two topologies: which sites, workers and links a swap adds, removes and changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.spec.topology import Topology, Worker


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one kind of thing that were added, removed or changed; each tuple is sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @classmethod
    def between(cls, old: Mapping[str, object], new: Mapping[str, object]) -> Names:
        """Compare two mappings by key: keys in only one of them, and keys whose values differ."""
        return cls(
            added=tuple(sorted(new.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - new.keys())),
            changed=tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two topologies.

    A worker has changed if its container's limits have: that takes another container. A site itself never changes: its
    content is its workers, and the LAN is the same for all sites.
    """

    sites: Names
    workers: Names
    links: Names
    lan: bool

    @classmethod
    def between(cls, old: Topology, new: Topology) -> Difference:
        """Compare two topologies."""
        return cls(
            sites=Names.between(dict.fromkeys(old.sites), dict.fromkeys(new.sites)),
            workers=Names.between(_limits(old), _limits(new)),
            links=Names.between(old.links, new.links),
            lan=old.lan != new.lan,
        )


def _limits(topology: Topology) -> dict[str, tuple[float | None, int, int | None]]:
    def limits(worker: Worker) -> tuple[float | None, int, int | None]:
        return worker.cpus, worker.gpus, worker.memory

    return {worker.name: limits(worker) for worker in topology.workers}
