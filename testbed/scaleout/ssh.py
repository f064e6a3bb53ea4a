"""Commands on a host, run by the system's SSH client. A host whose key is not in `known_hosts` is refused."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from testbed.emulation.process import await_end
from testbed.run.errors import CannotRun
from testbed.spec.hosts import Host, Hosts

#: A host answers its first packets within seconds, or is not there.
CONNECT_S = 15

#: The exit code of `ssh` itself when it could not run a command.
SSH_FAILED = 255

#: Some SSH servers start root's commands without the folders of network tools.
PATH = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin"

#: The seconds in which a server answers for forwarded sockets: it authenticates the user, and starts the user's shell.
FORWARD_S = 60.0

#: A client that was told to end does so at once; the rest is for a busy machine.
END_S = 5.0

#: The bytes of a client's errors that are read.
MOST_QUOTED = 64 * 1024
#: The number of lines of a failed command's output that an error quotes.
QUOTED_LINES = 12


class Forwarding:
    """An SSH client that forwards sockets of a host until it ends."""

    def __init__(self, ssh: Ssh, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._ssh, self._process, self._errors = ssh, process, errors

    @property
    def failure(self) -> str | None:
        """The reason why the host's sockets are no longer forwarded; None while the client runs."""
        if self._process.poll() is None:
            return None
        return f"the SSH client that forwards sockets of {self._ssh.name} has ended: {self.said}"

    @property
    def said(self) -> str:
        """The reason why nothing is forwarded: the client's output with the remedy, or a server that did not answer."""
        if self._process.returncode is None:
            text = f"{self._ssh.name}: its SSH server did not begin to forward sockets within {FORWARD_S:g} s"
            return f"{text}; check that a command over SSH ends there: `ssh {self._ssh.host.address} true`"
        output = os.pread(self._errors.fileno(), MOST_QUOTED, 0).decode(errors="replace").strip()
        return self._ssh.failure(self._process.returncode, output)


@dataclass(frozen=True)
class Ssh:
    """SSH access to one host."""

    name: str
    host: Host
    key: Path | None
    known_hosts: Path | None

    @classmethod
    def of(cls, hosts: Hosts, name: str) -> Ssh:
        """Return the access to the host `name` of a hosts file."""
        host, known = hosts.by_name[name], hosts.spec.known_hosts
        key = hosts.path(host.key).absolute() if host.key else None  # `forwarding` runs the client in another folder
        return cls(name, host, key, hosts.path(known).resolve() if known else None)

    def client(self, alive_s: int = 10, alive_count: int = 6) -> list[str]:
        """Return the client's command up to the destination; the command for the host comes after it.

        The client gives up on a host that leaves `alive_count` messages, sent every `alive_s` seconds, unanswered.
        """
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={CONNECT_S}"]
        options += [f"ServerAliveInterval={alive_s}", f"ServerAliveCountMax={alive_count}"]
        options += [f"UserKnownHostsFile={_quoted(self.known_hosts)}"] if self.known_hosts else []
        options += [f"IdentityFile={_quoted(self.key)}", "IdentitiesOnly=yes"] if self.key else []
        words = ["ssh", *(word for option in options for word in ("-o", option)), "-p", str(self.host.port)]
        return [*words, f"{self.host.user}@{self.host.address}"]

    def command(self, script: str, alive_s: int = 10, alive_count: int = 6) -> list[str]:
        """Return the local command that runs a shell script on the host, as root; `client` has the other arguments."""
        as_root = [] if self.host.user == "root" else ["sudo", "-n"]
        words = [*as_root, "bash", "-c", f"export {PATH}; {script}"]
        return [*self.client(alive_s, alive_count), shlex.join(words)]

    def run(self, script: str, given: bytes = b"", timeout_s: float | None = None) -> str:
        """Run a shell script on the host, as root, with `given` as its standard input, and return its standard output.

        Raises:
            CannotRun: The host was not reached, or the script failed or took longer than `timeout_s`.
        """
        try:
            done = subprocess.run(self.command(script), input=given, capture_output=True, timeout=timeout_s)
        except FileNotFoundError as error:
            raise CannotRun("`ssh` is not installed here; install openssh-client") from error
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"{self.name}: the command did not end within {timeout_s:g} s: {script}") from error
        if done.returncode:
            output = (done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")).strip()
            raise CannotRun(self.failure(done.returncode, output))
        return done.stdout.decode(errors="replace")

    @contextmanager
    def forwarding(self, sockets: Mapping[Path, Path], folder: Path) -> Iterator[Forwarding]:
        """Have the host's SSH server listen at Unix sockets within the context, and lead connections to sockets here.

        The client's standard input is a pipe from this process, so that a killed process leaves no client. Yields the
        forwarding, which says whether the client still runs.

        Args:
            sockets: Maps each socket there to the socket here, whose path begins in `folder`. The server opens its
                sockets as the user of SSH, for that user alone.
            folder: The folder in which the client runs. The kernel takes 107 bytes of a socket's path.

        Raises:
            CannotRun: The host was not reached, its server does not forward sockets, or it did not answer in FORWARD_S.
        """
        *client, destination = self.client(alive_s=5, alive_count=3)
        # A connection that the user's settings share would keep the sockets after this client's end.
        client += ["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        # The user's settings may clear all forwarding, of the command line too.
        client += ["-o", "ClearAllForwardings=no"]
        client += [word for there, here in sockets.items() for word in ("-R", f"{there}:./{here}")]
        # The server runs the command after it has answered for every socket.
        command, pipe = [*client, destination, "echo; exec cat"], subprocess.PIPE
        with (
            TemporaryFile() as errors,
            subprocess.Popen(
                command, cwd=folder, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True
            ) as process,
        ):
            assert process.stdout is not None
            forwarding = Forwarding(self, process, errors)
            try:
                answer = select.poll()  # `select` refuses descriptors from 1,024 on
                answer.register(process.stdout, select.POLLIN)
                answered = answer.poll(FORWARD_S * 1e3)
                if not answered or not os.read(process.stdout.fileno(), 1):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(END_S if answered else 0)
                    raise CannotRun(forwarding.said)
                yield forwarding
            finally:
                process.terminate()
                await_end(process, END_S)

    def failure(self, code: int, output: str) -> str:
        """Return the text for a client that ended with an exit code, with the end of its output and the remedy."""
        quoted = "\n    ".join(output.splitlines()[-QUOTED_LINES:])
        if code != SSH_FAILED:
            return f"{self.name}: a command on the host ended with exit code {code}:\n    {quoted}"
        return f"{self.name} ({self.host.address}, port {self.host.port}): {quoted}\n    {self._remedy(output)}"

    def _remedy(self, output: str) -> str:
        known = self.known_hosts or "~/.ssh/known_hosts"
        port = f"-p {self.host.port} " if self.host.port != 22 else ""
        if "IDENTIFICATION HAS CHANGED" in output or "verification failed" in output:
            return (
                f"the host's key is not the one in {known}: look the key up at the host (ssh-keygen -lf on its public "
                f"key), compare it with that of `ssh-keyscan {port}{self.host.address}`, and add the output to {known}"
            )
        if "ermission denied" in output:
            keys = self.key or "any key that ssh tries"
            return f"the host does not accept {self.host.user} with {keys}: name the right key as `key`"
        if "forwarding failed" in output:
            return (
                "the SSH server must forward the sockets by which workers reach the controller: allow that in its "
                "sshd_config (`AllowStreamLocalForwarding` and `AllowTcpForwarding` yes, no `DisableForwarding`) and "
                "in authorized_keys (no `restrict`, no `no-port-forwarding`), and restart the server"
            )
        return "check that the host is on, that its address is right, and that its SSH server accepts connections"


def _quoted(file: Path) -> str:
    """Return a path as an option of the client has it: in quotes, with each `%` twice."""
    text = str(file).replace("%", "%%").replace("\\", r"\\").replace('"', r"\"")
    return f'"{text}"'
