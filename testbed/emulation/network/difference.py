"""What another topology would change in a network: what a swap adds, removes and changes, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.spec.topology import Topology, Worker


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one kind of thing, each tuple in order."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @classmethod
    def between(cls, old: Mapping[str, object], new: Mapping[str, object]) -> Names:
        """By name: what is only in the one or the other, and what is in both with another value."""
        return cls(
            added=tuple(sorted(new.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - new.keys())),
            changed=tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Difference:
    """A worker has changed when its container's limits have: that takes another container.

    A site as such does not change: what it has are its workers, and the LAN is the same for all.
    """

    sites: Names
    workers: Names
    links: Names
    lan: bool

    @classmethod
    def between(cls, old: Topology, new: Topology) -> Difference:
        """From one network to another."""
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
