"""Commands on a host, by the system's SSH client. A host whose key is not known is refused."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.run.errors import CannotRun
from testbed.spec.hosts import Host, Hosts

#: A host answers its first packets in seconds, or is not there.
CONNECT_S = 15

#: What ssh itself ends with when it comes to no command.
SSH_FAILED = 255

#: Not every SSH server gives root the folders of what configures networks.
PATH = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin"

#: How much of what a command said is quoted.
QUOTED_LINES = 12


@dataclass(frozen=True)
class Ssh:
    """The way to one host."""

    name: str
    host: Host
    key: Path | None
    known_hosts: Path | None

    @classmethod
    def of(cls, hosts: Hosts, name: str) -> Ssh:
        """That to a host of a file."""
        host = hosts.by_name[name]
        known = hosts.spec.known_hosts
        return cls(
            name, host, hosts.path(host.key) if host.key else None, hosts.path(known).resolve() if known else None
        )

    def command(self, script: str) -> list[str]:
        """What runs a shell script there, as root."""
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={CONNECT_S}"]
        options += ["ServerAliveInterval=10", "ServerAliveCountMax=6"]
        options += [f"UserKnownHostsFile={self.known_hosts}"] if self.known_hosts else []
        options += [f"IdentityFile={self.key}", "IdentitiesOnly=yes"] if self.key else []
        words = ["ssh", *(word for option in options for word in ("-o", option)), "-p", str(self.host.port)]
        root = [] if self.host.user == "root" else ["sudo", "-n"]
        there = shlex.join([*root, "bash", "-c", f"export {PATH}; {script}"])
        return [*words, f"{self.host.user}@{self.host.address}", there]

    def run(self, script: str, given: bytes = b"", timeout_s: float | None = None) -> str:
        """Run a shell script there and give it this input; what it prints. CannotRun when it fails, or none can."""
        try:
            done = subprocess.run(self.command(script), input=given, capture_output=True, timeout=timeout_s)
        except FileNotFoundError as error:
            raise CannotRun("there is no `ssh` here; install openssh-client") from error
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"{self.name}: nothing came of it within {timeout_s:g} s: {script}") from error
        if done.returncode:
            said = (done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")).strip()
            raise CannotRun(self._failed(done.returncode, said))
        return done.stdout.decode(errors="replace")

    def _failed(self, code: int, said: str) -> str:
        quoted = "\n    ".join(said.splitlines()[-QUOTED_LINES:])
        if code != SSH_FAILED:
            return f"{self.name}: a command there ended with {code}:\n    {quoted}"
        return f"{self.name} ({self.host.address}, port {self.host.port}): {quoted}\n    {self._remedy(said)}"

    def _remedy(self, said: str) -> str:
        known = self.known_hosts or "~/.ssh/known_hosts"
        port = f"-p {self.host.port} " if self.host.port != 22 else ""
        if "IDENTIFICATION HAS CHANGED" in said or "verification failed" in said:
            return (
                f"its key is not the one in {known}: look it up at the host (ssh-keygen -lf on its public key), "
                f"compare it with that of `ssh-keyscan {port}{self.host.address}`, and add what that prints to {known}"
            )
        if "ermission denied" in said:
            return (
                f"{self.host.user} does not come in with {self.key or 'the keys that ssh tries'}: name the key as `key`"
            )
        return "see that it is on, that its address is right, and that its SSH server takes connections from here"
