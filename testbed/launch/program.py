"""A user's program on a worker: started in its container, or as a program of this machine in its network.

Either way the output can be read while the program runs, and its end can be waited for. The exit code is that of a
shell: 128 plus the signal's number if a signal ended the program, although a program may also choose such a code.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import docker
from docker.errors import APIError
from docker.models.containers import Container
from requests import Response

from testbed.emulation import label
from testbed.emulation.containers.engine import proven_process
from testbed.emulation.containers.fleet import FILES, container_name
from testbed.emulation.containers.limits import ended_for_memory, written_size
from testbed.emulation.network.names import Names, without_proxies
from testbed.emulation.network.namespace import inside
from testbed.emulation.process import ProcessIdentity, how_it_ended, now_ticks, signal_in_words
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.hints import NO_FILES, ContainerFiles, host_hints, line_end_hints
from testbed.launch.ranks import Rank

#: Seconds that an engine may take to start a program, or to report its end. An idle engine takes 50 ms from the request
#: to the first instruction; a busy one takes seconds.
ENGINE_S = 60.0
ASK_S = 0.01

#: The errors of a machine that is short of processes, files or memory, so that it can start no program at all.
SHORT = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)

#: The exit codes of a program that the engine could not start.
NOT_STARTED = (126, 127)

#: The exit code of a program that a signal ended is this plus the signal's number, for a shell and an engine.
KILLED = 128

CHUNK_BYTES = 1 << 16

FRAME_HEAD_BYTES = 8

#: The command of each worker, by its name.
Commands = Mapping[str, Sequence[str]]


class StartedProgram(Protocol):
    """A program that was started."""

    def opened(self) -> int | None:
        """Return a descriptor of the process, which becomes readable when the process ends; None if it has ended."""

    def output(self) -> Iterator[bytes]:
        """Return the output on both streams, until the program and all that it started have closed them."""

    def exit_code(self) -> int:
        """Return the exit code of the program, which has ended."""

    def how_it_ended(self, status: int | None) -> str:
        """Return how the program ended, as the end of a sentence: its exit code, or its signal.

        `status` is the wait status that its parent got, or None if that is not known.
        """

    def hints(self, said: Sequence[str]) -> Sequence[str]:
        """Return what to do about a program that failed, judged by the last lines that it printed."""


class Starter(Protocol):
    """Starts a command's processes."""

    def start(self, rank: Rank) -> StartedProgram:
        """Start the process of a rank.

        Raises:
            BadCommand: There is no such program.
            LaunchFailed: The worker has ended.
            OSError: This machine can start no further program.
        """

    def end(self) -> None:
        """End the processes that the started ones left behind without the launch's label."""


class HostStarter:
    """Starts each worker's command, a program of this machine, in the worker's network namespace.

    `launch` is the label of this launch's processes. `holders` has the process that holds each worker's namespace.
    """

    def __init__(self, network: str, launch: str, commands: Commands, holders: Mapping[str, ProcessIdentity]) -> None:
        self._labels = {label.ENVIRONMENT: network, label.LAUNCH: launch}
        self._commands = commands
        self._holders = holders
        self._names = Names(label.control_folder(network))

    def start(self, rank: Rank) -> StartedProgram:
        """Start the process of a rank; see `Starter.start`."""
        command = self._commands[rank.worker]
        environment = {**without_proxies(os.environ), **rank.environment, **self._labels}
        try:
            return inside(self._holders[rank.worker], lambda: self._started(rank.worker, command, environment))
        except ProcessLookupError:
            raise LaunchFailed(f"{rank.worker} has ended; take the network down and up again") from None
        except OSError as error:
            if error.errno in SHORT:
                raise
            remedy = "; ".join(line_end_hints(command, None)) or "the path of a program"
            if error.errno == errno.E2BIG:
                remedy = "shorter arguments, such as the path of a file: the kernel takes 128 KiB of each"
            raise BadCommand(
                f"{command[0]} cannot be run on this machine: {error.strerror}\n    write instead: {remedy}"
            ) from None

    def end(self) -> None:
        """Do nothing: all processes are in UTS namespaces with the launch's mark, by which they are found."""

    def _started(self, worker: str, command: Sequence[str], environment: dict[str, str]) -> HostProgram:
        self._names.take_on(worker, label.domain_name(self._labels))
        return HostProgram(command, environment)


class HostProgram:
    """A program of this machine, started in the network namespace that its caller is in."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process alone
        )

    def opened(self) -> int | None:
        """Return a descriptor of the process, which becomes readable when the process ends."""
        return os.pidfd_open(self._process.pid)  # a child that was not waited for keeps its number

    def output(self) -> Iterator[bytes]:
        """Yield the program's output on both streams as it arrives."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while piece := stream.read(CHUNK_BYTES):
                yield piece

    def exit_code(self) -> int:
        """Return the exit code of the program, which has ended."""
        code = self._process.wait()
        return code if code >= 0 else KILLED - code

    def how_it_ended(self, status: int | None) -> str:
        """Return how the program ended, by its exit code or its signal, as the end of a sentence."""
        return how_it_ended(self._process.wait())

    def hints(self, said: Sequence[str]) -> Sequence[str]:
        """Return what to do about the failed program, by the last lines that it printed; see `host_hints`."""
        return list(host_hints(self._command, said))


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """A command with the paths of its container, and facts on the container."""

    words: Sequence[str]
    container_files: ContainerFiles = NO_FILES
    #: The number of the container's first process.
    pid: int = 0
    #: The container's limit on memory; 0 if there is none.
    memory_bytes: int = 0
    #: The number of processes that this limit had ended before the command was started.
    ended_before: int = 0

    def how_it_ended(self, code: int, status: int | None) -> str:
        """Return how the command ended, by its exit code and its wait status, as the end of a sentence.

        The code is what the engine reports. Without a status, one above 128 has two readings: a signal ended the
        command, or the program chose the code.
        """
        if ended_for_memory(self.pid) > self.ended_before:
            limit = written_size(self.memory_bytes)
            return f"ended with exit code {code}, out of memory: its container's limit is {limit}"
        if status is not None:
            return how_it_ended(os.waitstatus_to_exitcode(status))
        number = code - KILLED
        may_be = f", as after signal {signal_in_words(number)}" if number in signal.valid_signals() else ""
        return f"ended with exit code {code}{may_be}"


class ContainerStarter:
    """Starts each worker's command, a program of its image, in its container; in FILES if the container sees files.

    `launch` is the label of this launch's processes.
    """

    def __init__(self, client: docker.DockerClient, network: str, launch: str, commands: Commands) -> None:
        self._client = client
        self._network = network
        self._labels = {label.ENVIRONMENT: network, label.LAUNCH: launch}
        self._commands = commands
        self._began_ticks = now_ticks()
        self._containers: dict[str, Container] = {}

    def start(self, rank: Rank) -> StartedProgram:
        """Start the process of a rank; see `Starter.start`."""
        try:
            container = self._client.containers.get(container_name(self._network, rank.worker))
            mounts = {mount["Destination"]: mount["Source"] for mount in container.attrs["Mounts"]}
            container_files = ContainerFiles(Path(mounts[FILES]) if FILES in mounts else None)
            pid, memory_bytes = int(container.attrs["State"]["Pid"]), int(container.attrs["HostConfig"]["Memory"])
            words = container_files.translate(self._commands[rank.worker])
            proven_process(str(container.id), pid)
            command = ContainerCommand(words, container_files, pid, memory_bytes, ended_for_memory(pid))
            program = self._client.api.exec_create(
                container.id,
                words,
                environment={"USER": "worker", "HOME": "/tmp", **rank.environment, **self._labels},
                workdir=FILES if FILES in mounts else None,
            )
        except APIError as error:
            raise LaunchFailed(f"{rank.worker}: {error.explanation}") from error
        self._containers[rank.worker] = container
        return ContainerProgram(self._client, str(program["Id"]), rank.worker, command)

    def end(self) -> None:
        """Kill processes that this launch's programs left running in their containers, which may stay up.

        An orphan becomes a child of the container's first process. One that started before the launch, that carries the
        label of another launch under way, or that such a process started does not belong to this launch.
        """
        for container in self._containers.values():
            first = proven_process(str(container.id), int(container.attrs["State"]["Pid"]))
            deadline = time.monotonic() + label.KILL_DEADLINE_S
            while first is not None and time.monotonic() < deadline:
                orphans = label.orphans_of(first, self._began_ticks, self._network, self._labels[label.LAUNCH])
                for orphan in orphans:
                    orphan.send(signal.SIGKILL)
                if not orphans:
                    break
                time.sleep(ASK_S)


class ContainerProgram:
    """A program in a container, known by its id at the engine. It is started on creation."""

    def __init__(self, client: docker.DockerClient, program: str, worker: str, command: ContainerCommand) -> None:
        self._client = client
        self._id = program
        self._worker = worker
        self._command = command
        self._output = _started(client.api, program)

    def opened(self) -> int | None:
        """Return a descriptor of the process, or None if it has ended.

        Raises:
            BadCommand: The image has no such program.
            LaunchFailed: The engine did not start the program within ENGINE_S.
        """
        deadline = time.monotonic() + ENGINE_S
        while self._is_running(state := self._client.api.exec_inspect(self._id)):
            if state["Pid"] and (process := proven_process(state["ContainerID"], state["Pid"])):
                return process.opened()
            if time.monotonic() > deadline:
                raise LaunchFailed(f"{self._worker}: the engine has not started the program in {ENGINE_S:.0f} s")
            time.sleep(ASK_S)
        if state["ExitCode"] in NOT_STARTED and not state["Pid"]:
            said = b"".join(self._output).decode(errors="replace").strip()
            program = str(state["ProcessConfig"]["entrypoint"])
            hints = self.hints([*said.splitlines(), f"{program}: not found"])
            raise BadCommand(
                f"{program} cannot be run in {self._worker}: {said}\n"
                f"    write instead: {'; '.join(hints) or 'a program that its image has'}"
            )
        return None

    def output(self) -> Iterator[bytes]:
        """Return an iterator over the program's output on both streams as it arrives."""
        return self._output

    def exit_code(self) -> int:
        """Return the exit code of the program, which has ended.

        Raises:
            LaunchFailed: The engine did not report one within ENGINE_S.
        """
        deadline = time.monotonic() + ENGINE_S
        while self._is_running(state := self._client.api.exec_inspect(self._id)):
            if time.monotonic() > deadline:
                raise LaunchFailed(f"{self._worker}: the engine does not say how the program ended")
            time.sleep(ASK_S)
        return int(state["ExitCode"])

    def how_it_ended(self, status: int | None) -> str:
        """Return how the program ended, by its exit code and wait status, as the end of a sentence."""
        return self._command.how_it_ended(self.exit_code(), status)

    def hints(self, said: Sequence[str]) -> Sequence[str]:
        """Return what to do about the failed program, by the last lines that it printed; see `ContainerFiles.hints`."""
        return self._command.container_files.hints(self._command.words, said)

    @staticmethod
    def _is_running(state: Mapping[str, Any]) -> bool:
        """Return whether the program is still running.

        An engine answers a start a moment before it reports that the program runs.
        """
        return bool(state["Running"]) or state["ExitCode"] is None


def _started(api: docker.APIClient, program: str) -> Iterator[bytes]:
    """Start a program that was created at the engine, and return its output as it arrives.

    `APIClient.exec_start` skips the buffer that the head of the answer was read into, so all output up to then is lost:
    in 3 of 480 starts of a program that ends at once, beside four busy processes.

    Raises:
        HTTPError: The engine refuses.
    """
    answer = api.post(
        f"{api.base_url}/v{api.api_version}/exec/{program}/start",
        json={"Detach": False, "Tty": False},
        stream=True,
        timeout=None,  # a program may print nothing for any time
    )
    answer.raise_for_status()
    return _frames(answer)


def _frames(answer: Response) -> Iterator[bytes]:
    """Yield the contents of an engine's frames. A head before each has the stream and, in 4 bytes, the length."""
    while len(head := answer.raw.read(FRAME_HEAD_BYTES)) == FRAME_HEAD_BYTES:
        yield answer.raw.read(int.from_bytes(head[4:], "big"))
