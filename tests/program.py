"""Python programs as processes of their own, forked from a server that has imported what they import.

PyTorch takes 1.5 s of CPU time to import, its compiler, which every optimizer of its own imports, 4.4 s, and the
planner 1.1 s: more than most programs that tests start compute then. The server imports each once a session.

What a fork does not try is the command line itself, and that members agree whatever the seeds of their Python's hashes,
which all forks have in common. Each program is therefore in one test or more started by its command line (`spawn`).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory

FORKS = multiprocessing.get_context("forkserver")

_preloaded = [__name__]


def preload(*modules: str) -> None:
    """Have the server import these as well. It starts with the first program, so a test file says so at its head.

    A program's main module is not to be among them: runpy warns of one that is there already.
    """
    _preloaded.extend(modules)
    FORKS.set_forkserver_preload(_preloaded)


def spawn(*words: str) -> Popen[str]:
    """Start the program `python WORDS`, by its command line."""
    return Popen([sys.executable, *words], stdout=PIPE, stderr=PIPE, text=True)


class ForkedProgram:
    """The program `python WORDS`, forked, with what tests use of Popen's interface. Killed on leaving.

    Words are `-m MODULE …` or `FILE …`; the working directory and the environment are the caller's.
    """

    def __init__(self, *words: str) -> None:
        self._said = TemporaryDirectory(prefix="testbed-program-")
        self._files = [Path(self._said.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        arguments = (words, dict(os.environ), self._files)
        self._process = FORKS.Process(target=_become, args=arguments, name=" ".join(words), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._said.cleanup()

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. TimeoutExpired when it has not ended in time (seconds)."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise TimeoutExpired(self._process.name, timeout, *(file.read_bytes() for file in self._files))
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it said on standard output and standard error, when it has ended."""
        self.wait(timeout)
        return self.said

    @property
    def said(self) -> tuple[str, str]:
        """The output so far, on standard output and standard error."""
        output, errors = (file.read_text() for file in self._files)
        return output, errors

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _become(words: Sequence[str], environment: Mapping[str, str], files: Sequence[Path]) -> None:
    """Run the program in a fork. multiprocessing treats its exit code or traceback as Python does."""
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    run_here(words)


def run_here(words: Sequence[str]) -> None:
    """Run the program `python WORDS` in this process."""
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
