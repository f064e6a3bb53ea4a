"""Executes a case: starts its run, injects its faults when their moments come, and sees it to its end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker

from tests.chaos.case import Case
from tests.chaos.history import Execution, History, Injection
from tests.chaos.planted import Bug
from tests.chaos.surroundings import Foreign, interfaces_kept, left_behind
from tests.chaos.targets import NotThere, Targets
from tests.run.running import PROGRAM, REPOSITORY, Running

#: What a run has at most to end: its first containers 60 s on a busy host, then its watchdog's 60 s without progress.
DEADLINE_S = 180.0
POLL_S = 0.02
#: A disk of its own has room for a run, and for the 64 MiB that one wants to be free.
DISK = "size=160m"


def execute(case: Case, folder: Path, bug: Bug | None = None) -> History:
    """Execute a case in an empty folder, which keeps its files; its history."""
    with _disk(folder, case.fills_disk), tempfile.TemporaryDirectory(prefix="chaos") as temporary:
        file = case.write(folder)
        with Foreign() as foreign, interfaces_kept() as new:
            words = [*(["--containers"] if case.containers else [])]
            words += ["--bug", bug.name, "--seed", str(bug.seed)] if bug else []
            variables = (f"PYTHONPATH={REPOSITORY}", f"TMPDIR={temporary}")
            program = ("env", *variables, sys.executable, "-m", "tests.chaos.program", *words)
            with Running(folder, str(file.resolve()), program=program) as running:
                execution = _watch(case, running, Path(temporary))
            touched = foreign.touched
        left = (*execution.left, *(f"interface {name}" for name in new))
        execution = Execution(**{**vars(execution), "left": left, "touched": touched})
        (folder / "output.txt").write_text(execution.output)
        return History.read(case, execution)


def _watch(case: Case, running: Running, temporary: Path) -> Execution:
    """Until the run's end, or that of the time it has."""
    targets = Targets(running, case.members)
    waiting, injections = list(case.faults), []
    containers: set[str] = set()
    until = time.monotonic() + DEADLINE_S
    while running.process.poll() is None and time.monotonic() < until:
        for fault in [fault for fault in waiting if fault.at.has_come(targets)]:
            waiting.remove(fault)
            if case.containers:
                containers |= {str(container.id) for container in _containers(running)}
            injection = Injection(fault, time.time())
            injections.append(injection)
            try:
                fault.inject(targets)
            except NotThere as error:
                injection.missed = f"there was no {error}"
            injection.ended_s = time.time()
        time.sleep(POLL_S)
    code, ended_s = running.process.poll(), time.time()
    if code is None:
        running.process.kill()
    with suppress(subprocess.TimeoutExpired):
        running.process.wait(10)
    injections += [Injection(fault, ended_s, missed="its moment never came") for fault in waiting]
    if code in (None, -signal.SIGKILL):  # nothing was taken away
        clean = [sys.executable, "-m", "testbed.cli", "clean", "--name", running.directory.name]
        subprocess.run(clean, check=False, capture_output=True)
        shutil.rmtree(temporary)  # nor what only the process knew of
        temporary.mkdir()
    left = left_behind(running, containers, temporary)
    _take_away(running, left)
    return Execution(code, running.output, running.directory, ended_s, tuple(injections), tuple(left), ())


def _containers(running: Running) -> Iterator[docker.models.containers.Container]:
    with suppress(docker.errors.DockerException):
        yield from running.containers


def _take_away(running: Running, left: list[str]) -> None:
    """What a run left, so that the next case begins on a clean machine."""
    if left:
        subprocess.run([*PROGRAM, "clean", "--name", running.directory.name], check=False, capture_output=True)


@contextmanager
def _disk(folder: Path, own: bool) -> Iterator[None]:
    """While inside, the folder is on a small disk of its own, if it is to be; what is there is kept afterwards."""
    if not own:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "chaos", folder], check=True)
    kept = Path(tempfile.mkdtemp(prefix="chaos-kept"))
    try:
        yield
    finally:
        (folder / "filler").unlink(missing_ok=True)
        shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["umount", folder], check=True)
        shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(kept)
