"""The command that a user starts on workers, with its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from testbed.emulation.containers import engine
from testbed.emulation.process import ProcessIdentity
from testbed.launch import BadCommand
from testbed.launch.program import ContainerStarter, HostStarter, Starter
from testbed.launch.ranks import Peer, Rank, alone, ranks_of
from testbed.launch.result_files import CopiedFiles, clear_results, copy_results
from testbed.launch.working_folder import make_writable
from testbed.schemes.choice import SchemeChoice

#: The hosts of a network's status, by name.
Hosts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run: its `words`, `nproc` times on each of `workers` (None is all), in their containers or as a
    program of this machine. With a `backend`, a script that says gloo gets that one; with a `scheme`, as TESTBED_SCHEME
    has it, that is around its optimizer's steps."""

    words: Sequence[str]
    workers: Sequence[str] | None = None
    nproc: int = 1
    on_host: bool = False
    backend: Literal["wan"] | None = None
    scheme: str | None = None

    @property
    def planned(self) -> dict[str, str]:
        """The variables that have its processes go by a controller's plans; empty where none does."""
        named = {"TESTBED_BACKEND": self.backend, "TESTBED_SCHEME": self.scheme}
        return {name: value for name, value in named.items() if value}

    def check(self, there: Sequence[str]) -> None:
        """Raise BadCommand where it is for a worker that is none of those that are there, or can't have the backend
        or the scheme."""
        if self.backend and self.scheme:
            raise BadCommand("--backend and --scheme at once\n    write instead: one of them", field="scheme")
        if self.planned and self.nproc > 1:
            raise BadCommand(
                "--backend and --scheme are for one process on each worker\n    write instead: --nproc 1",
                field="nproc",
                given=self.nproc,
            )
        try:
            SchemeChoice.parse(self.scheme or "gradients")
        except ValueError as error:
            raise BadCommand(f"--scheme {self.scheme}: {error}", field="scheme", given=self.scheme) from None
        chosen = dict.fromkeys(self.workers or there)
        if len(chosen) > 1 and (option := alone(self.words)):
            raise BadCommand(
                f"torchrun {option} starts a training of its own on each of {len(chosen)} workers, which never meet\n"
                f"    write instead: torchrun without {option}, or --workers {next(iter(chosen))}",
                field="command",
                given=option,
            )
        for name in self.workers or ():
            if name not in there:
                raise BadCommand(
                    f"no worker {name}\n    write instead: some of {', '.join(there)}", field="workers", given=name
                )

    def ranks(self, hosts: Hosts) -> list[Rank]:
        """Its processes on a network with these hosts, as its status has them. BadCommand where one is not there."""
        self.check(_workers(hosts))
        peers = [Peer(name, hosts[name]["site"], hosts[name]["address"]) for name in self._chosen(hosts)]
        return ranks_of(self._commands(hosts), peers, self.nproc)

    def starter(self, network: str, hosts: Hosts, launch: str) -> Starter:
        """Return the starter of the processes.

        Raises:
            EngineError: The command runs in containers, and no engine answers.
        """
        if not self.on_host:
            return ContainerStarter(engine.connect(), network, launch, self._commands(hosts))
        return HostStarter(network, launch, self._commands(hosts), _holders(hosts))

    def prepare(self, hosts: Hosts) -> list[str]:
        """Remove what an earlier launch left in its workers' containers, and have FILES be writable. Return what does
        not hold of that, for a person."""
        if self.on_host:
            return []
        holders = [_holders(hosts)[name] for name in self._chosen(hosts)]
        for holder in holders:
            clear_results(holder)
        return make_writable(holders)

    def copy_results(self, hosts: Hosts, target: Path) -> dict[str, CopiedFiles]:
        """Copy what its programs left in their containers into a folder for each worker. Return what was copied."""
        if self.on_host:
            return {}
        return {name: copy_results(_holders(hosts)[name], target / name) for name in self._chosen(hosts)}

    def _commands(self, hosts: Hosts) -> dict[str, Sequence[str]]:
        return dict.fromkeys(self._chosen(hosts), self.words)

    def _chosen(self, hosts: Hosts) -> list[str]:
        return list(dict.fromkeys(self.workers or _workers(hosts)))


def _workers(hosts: Hosts) -> list[str]:
    return [name for name, host in hosts.items() if host["kind"] == "worker"]


def _holders(hosts: Hosts) -> dict[str, ProcessIdentity]:
    return {name: ProcessIdentity(host["pid"], host["start_ticks"]) for name, host in hosts.items()}
