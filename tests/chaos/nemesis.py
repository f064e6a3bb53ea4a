"""Executes a case: starts its run, injects its faults when their moments come, and waits for the run's end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import docker

from tests.chaos import clock, own_engine
from tests.chaos.case import Case
from tests.chaos.faults import FillDisk, KillEngine, StepClock
from tests.chaos.history import Execution, History, Injection
from tests.chaos.planted import Bug
from tests.chaos.surroundings import ForeignThings, interfaces_kept, left_behind
from tests.chaos.targets import TargetMissing, Targets
from tests.run.running import PROGRAM, REPOSITORY, Running

#: A run hangs if it prints nothing and completes no round for this long: its first containers take 60 s on a busy host,
#: and its own watchdog ends it after 60 s without progress.
SILENCE_S = 180.0
#: The most time of a run that still prints. On a host with other work, a run takes minutes.
DEADLINE_S = 900.0
POLL_S = 0.02
NEVER = "its moment never came"
#: The size of a run's own disk: room for its records, and for the 64 MiB that a run wants to be free.
DISK = "size=160m"


def execute(case: Case, folder: Path, bug: Bug | None = None) -> History:
    """Execute a case in an empty folder, which keeps its files, and return its history."""
    with ExitStack() as stack:
        stack.enter_context(_disk(folder, case.has(FillDisk)))
        engine = stack.enter_context(own_engine.used()) if case.has(KillEngine) else None
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
        file = case.write(folder)
        foreign, new = stack.enter_context(ForeignThings()), stack.enter_context(interfaces_kept())
        variables = (f"PYTHONPATH={REPOSITORY}", f"TMPDIR={temporary}")
        program = ("env", *variables, sys.executable, "-m", "tests.chaos.program")
        words = [*(["--containers"] if case.containers else [])]
        words += ["--bug", bug.name, "--seed", str(bug.seed)] if bug else []
        settable = clock.settable(folder.resolve()) if case.has(StepClock) else ()
        with Running(folder, str(file.resolve()), program=(*settable, *program, *words)) as running:
            execution = _watch(case, Targets(running, case.members, program, engine), temporary)
        left = (*execution.left, *(f"interface {name}" for name in new()))
        return History.read(case, replace(execution, left=left, touched=foreign.touched))


def _watch(case: Case, targets: Targets, temporary: Path) -> Execution:
    """Inject faults until the run ends or its time is over."""
    nemesis, running = Nemesis(case, targets), targets.running
    try:
        began = news_at = time.monotonic()
        seen = (0, 0)
        while running.process.poll() is None and (now := time.monotonic()) - news_at < SILENCE_S:
            nemesis.look()
            if (came := (len(running.lines), targets.round)) != seen and now - began < DEADLINE_S - SILENCE_S:
                seen, news_at = came, now
            time.sleep(POLL_S)
        code, ended_s = running.process.poll(), time.time()
    finally:  # a nemesis that is interrupted itself leaves nothing either
        if running.process.poll() in (None, -signal.SIGKILL):
            running.process.kill()
            running.process.wait()
            _clean(running)
            for path in temporary.iterdir():  # what only the process knew of
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = left_behind(running, nemesis.containers, temporary)
    if left:  # the next case is to begin on a clean machine
        _clean(running)
    injections = (*nemesis.injections, *(Injection(fault, ended_s, missed=NEVER) for fault in nemesis.waiting))
    return Execution(code, running.output, running.directory, ended_s, injections, tuple(left), ())


class Nemesis:
    """Injects a case's faults when their moments come."""

    def __init__(self, case: Case, targets: Targets) -> None:
        #: Faults whose moments have not come.
        self.waiting = list(case.faults)
        self.injections: list[Injection] = []
        #: The ids of the containers that the run had.
        self.containers: set[str] = set()
        self._case = case
        self._targets = targets

    def look(self) -> None:
        """Inject the faults whose moments have come, one after the other."""
        for fault in [fault for fault in self.waiting if fault.at.has_come(self._targets)]:
            self.waiting.remove(fault)
            if self._case.containers:
                with suppress(docker.errors.DockerException):
                    self.containers |= {str(container.id) for container in self._targets.running.containers}
            injection = Injection(fault, time.time())
            self.injections.append(injection)
            try:
                injection.wrong = fault.inject(self._targets) or ""
            except TargetMissing as error:
                injection.missed = f"there was no {error}"
            injection.ended_s = time.time()


def _clean(running: Running) -> None:
    """Remove what a killed run left, as its user would."""
    if running.directory.exists():
        subprocess.run(
            [*PROGRAM, "network", "clean", "--name", running.directory.name], check=False, capture_output=True
        )


@contextmanager
def _disk(folder: Path, own: bool) -> Iterator[None]:
    """Mount a small disk at the folder, if `own`, until the context is left; its files are kept afterwards."""
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
