"""The programs of one command on all workers: started together, and ended together when one fails."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation import label
from testbed.emulation.containers.engine import ENGINE_ERRORS
from testbed.emulation.process import send_signal, wait_status
from testbed.errors import ending_of
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.output import Output, Told
from testbed.launch.program import ENGINE_S, StartedProgram, Starter
from testbed.launch.ranks import Rank

#: Seconds between two calls of `look`.
LOOK_S = 0.2

#: Seconds that programs have to end after SIGTERM; then they are killed.
GRACE_S = 5.0

#: Seconds to wait for the last output of a program that has ended. It is read within moments, on a busy machine within
#: seconds, unless a process that the program started still holds the output.
LAST_WORDS_S = 5.0

#: Seconds to wait for output that a busy engine may not have passed on, when no process holds the output any more.
PASSED_ON_S = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The first program that failed."""

    name: str
    #: The exit code.
    code: int
    #: How the program ended, as the end of a sentence.
    how: str
    #: The last lines that it printed.
    said: tuple[str, ...]
    #: What to do about the failure.
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = "\n".join(["what it said ends with:", *self.said]) if self.said else "it had said nothing"
        return "\n".join([f"{self.name} {self.how}; {said}", *(f"    {hint}" for hint in self.hints)])


class Programs:
    """The programs of a command's ranks. The caller of `start` also calls `end`, whatever happens in between.

    Args:
        starter: Starts the programs.
        ranks: The processes to start, each with its environment.
        launch: The value of `label.LAUNCH` in each program's environment, by which `end` finds all processes that the
            programs started.
        logs: The folder of the logs, `NAME.log` for each program.
        tell: Called with a program's name and each line that a person is to see; see `Output`.
        hear: Called with a program's name and every version of every line; see `Output`.

    Attributes:
        codes: The exit code of each program that has ended, in the order of their ends.
    """

    def __init__(
        self,
        starter: Starter,
        ranks: Sequence[Rank],
        launch: str,
        logs: Path,
        tell: Told,
        hear: Told = lambda name, line: None,
    ) -> None:
        self.codes: dict[str, int] = {}
        self._starter = starter
        self._ranks = ranks
        self._launch = launch
        self._logs = logs
        self._tell = tell
        self._hear = hear
        self._programs: dict[str, StartedProgram] = {}
        self._descriptors: dict[str, int | None] = {}  # None for a program that has ended
        self._ended_descriptors: dict[str, int] = {}  # of programs that have ended, until they are closed
        self._early: list[str] = []  # programs that ended before all were started, in the order of their ends
        self._statuses: dict[str, int | None] = {}
        self._outputs: dict[str, Output] = {}
        self._ends = select.epoll()  # lists descriptors in the order in which they became ready
        # A thread of its own: an interrupt in the middle of a start would leave a program that is not in `_programs`.
        self._starting = threading.Thread(target=self._start, name="start of programs", daemon=True)
        self._failures: list[Exception] = []
        self._over = False

    def start(self) -> None:
        """Start all programs of the command, at once.

        Raises:
            BadCommand: There is no such program.
            LaunchFailed: A worker has ended, or the engine failed.
        """
        self._starting.start()
        self._starting.join(2 * ENGINE_S * len(self._ranks))  # an engine that answers has ENGINE_S for each
        if self._starting.is_alive() and not self._failures:
            raise LaunchFailed("the Docker engine does not answer the start of a program; `testbed doctor` looks at it")
        if self._failures:
            raise self._failures[0]

    def wait(self, look: Callable[[], None]) -> Failure | None:
        """Wait until all programs have ended with 0, or one has failed. Return the failure, or None.

        `look` is called every LOOK_S; its errors end the wait.
        """
        ended = self._early
        while True:
            for name in ended:
                self.codes[name] = self._programs[name].exit_code()
                self._statuses[name] = self._closed(name)
            # Later failures may be consequences of the first one.
            if failed := next((name for name in ended if self.codes[name]), None):
                return self._failure(failed)
            if len(self.codes) == len(self._ranks):
                return None
            ended = self._ended(LOOK_S)
            for output in self._outputs.values():
                output.look(time.monotonic())
            look()

    def end(self) -> None:
        """End the programs that still run and all that they have started, and read the rest of their output."""
        self._over = True
        if self._starting.ident is not None:
            self._starting.join(ENGINE_S)  # the engine can't undo a start under way, and does not list it yet
        for name in [*self._programs]:  # a start that still hangs may add one
            with suppress(BadCommand, LaunchFailed, *ENGINE_ERRORS):
                self._open(name)
        for descriptor in [*self._descriptors.values()]:
            if descriptor is not None:
                send_signal(descriptor, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while any([*self._descriptors.values()]) and (left_s := deadline - time.monotonic()) > 0:
            self._ended(left_s)
        for descriptor in [*self._descriptors.values()]:
            if descriptor is not None:  # the program ignores SIGTERM, and may have cleared its environment
                send_signal(descriptor, signal.SIGKILL)
        label.kill_processes(self._launch, label.LAUNCH)
        self._ended(LAST_WORDS_S)
        for name in [*self._ended_descriptors]:
            self._closed(name)
        with suppress(*ENGINE_ERRORS):
            self._starter.end()
        for output in [*self._outputs.values()]:
            output.join(PASSED_ON_S)

    def check(self) -> None:
        """Raise the error that ended the reading of a program's output early, if one did. To be called after `end`."""
        for output in self._outputs.values():
            output.check()

    def _start(self) -> None:
        try:
            for rank in self._ranks:
                if self._over:
                    return
                self._programs[rank.name] = self._starter.start(rank)
            for name, program in self._programs.items():
                self._open(name)
                output = Output(name, self._logs / f"{name}.log", self._tell, program.output(), self._hear)
                self._outputs[name] = output
                output.start()
        except Exception as error:
            self._failures.append(error)

    def _open(self, name: str) -> None:
        if name not in self._descriptors:
            descriptor = self._descriptors[name] = self._programs[name].opened()
            if descriptor is None:
                self._early += [*self._ended(0), name]
            else:
                self._ends.register(descriptor, select.EPOLLIN)

    def _ended(self, timeout_s: float) -> list[str]:
        """Wait until a program ends, at most for this time, and return those that have ended, in that order."""
        names = {descriptor: name for name, descriptor in [*self._descriptors.items()] if descriptor is not None}
        if not names:
            return []
        ended = [descriptor for descriptor, _ in self._ends.poll(timeout_s)]
        for descriptor in ended:
            self._ends.unregister(descriptor)
            self._descriptors[names[descriptor]] = None
            self._ended_descriptors[names[descriptor]] = descriptor
        return [names[descriptor] for descriptor in ended]

    def _closed(self, name: str) -> int | None:
        """Close the descriptor of a program that has ended, and return its wait status if that is known."""
        descriptor = self._ended_descriptors.pop(name, None)
        if descriptor is None:
            return None
        try:
            return wait_status(descriptor)
        finally:
            os.close(descriptor)

    def _failure(self, name: str) -> Failure:
        output = self._outputs[name]
        output.join(LAST_WORDS_S)
        if not output.last:
            output.join(PASSED_ON_S)
        program, said = self._programs[name], tuple(output.last)
        how, hints = program.how_it_ended(self._statuses[name]), list(program.hints(said))
        if output.failure is not None:
            hints.append(f"its output was not read to the end: {ending_of(output.failure)[1]}")
        return Failure(name, self.codes[name], how, said, tuple(hints))
