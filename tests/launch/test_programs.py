"""Programs that start and end together: real ones, of this machine, here without a network around them."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from unittest.mock import Mock

import pytest

from testbed.emulation import label
from testbed.emulation.process import wait_status
from testbed.errors import NOT_HERE
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.program import HostProgram, StartedProgram
from testbed.launch.programs import Programs
from testbed.launch.ranks import Rank
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

LAUNCH = f"t{os.getpid()}"


class Here:
    """Starts each rank's own script as a program of this machine."""

    def __init__(self, scripts: Sequence[str]) -> None:
        self._scripts = dict(zip(NAMES, scripts, strict=False))

    def start(self, rank: Rank) -> StartedProgram:
        if not (script := self._scripts[rank.name]):
            raise BadCommand("no such program")
        return HostProgram([sys.executable, "-ISc", script], {**os.environ, label.LAUNCH: LAUNCH})

    def end(self) -> None:
        pass


class Slow(Here):
    """A start that takes its time at an engine: it goes on while its caller is interrupted."""

    def __init__(self, scripts: Sequence[str]) -> None:
        super().__init__(scripts)
        self.asked, self.answer = Event(), Event()
        self.begun: list[str] = []

    def start(self, rank: Rank) -> StartedProgram:
        self.begun.append(rank.name)
        self.asked.set()
        assert self.answer.wait(PATIENCE_S)
        return super().start(rank)


NAMES = ("a", "b", "c")
WAITS = "import signal; print('waits', flush=True); signal.pause()"

Start = Callable[..., Programs]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, told: list[str]) -> Iterator[Start]:
    made: list[Programs] = []

    def make(*scripts: str) -> Programs:
        ranks = [Rank(name, name, {}) for name, _ in zip(NAMES, scripts, strict=False)]
        made.append(Programs(Here(scripts), ranks, LAUNCH, tmp_path, lambda *line: told.append(" | ".join(line))))
        made[-1].start()
        return made[-1]

    yield make
    for programs in made:
        programs.end()
    assert not list(label.processes(LAUNCH, label.LAUNCH))


def nothing() -> None:
    """A stand-in for the caller's work between looks."""


def test_all_end_well(start: Start, told: list[str], tmp_path: Path) -> None:
    programs = start("print('one')", "import sys; print('two', file=sys.stderr)")
    assert programs.wait(nothing) is None
    programs.end()
    assert programs.codes == {"a": 0, "b": 0}
    assert sorted(told) == ["a | one", "b | two"]
    assert (tmp_path / "b.log").read_text() == "two\n"


def test_the_first_that_fails_is_named_with_what_it_said_and_ends_the_others(start: Start) -> None:
    programs = start(WAITS, "import no_such_module", WAITS)
    failure = programs.wait(nothing)
    assert failure is not None
    assert (failure.name, failure.code) == ("b", 1)
    assert failure.said[0].startswith("Traceback")
    assert "no_such_module" in failure.said[-1]
    programs.end()
    assert programs.codes == {"b": 1}


def test_one_that_is_killed_is_named_by_its_signal(start: Start, told: list[str]) -> None:
    programs = start(WAITS, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    failure = programs.wait(nothing)
    assert failure is not None
    assert str(failure).startswith("b ") and "signal 9 (SIGKILL)" in str(failure)


@pytest.mark.parametrize("code", [2, 129, 130, 137, 200, 255])
def test_an_exit_code_of_its_own_is_no_signal(start: Start, code: int) -> None:
    failure = start(f"import os; os._exit({code})").wait(nothing)
    assert failure is not None
    assert str(failure).startswith("a ") and f"exit code {code}" in str(failure)


@pytest.mark.parametrize(("script", "status"), [("exit 137", 137 << 8), ("kill -9 $$", signal.SIGKILL)])
def test_the_kernel_tells_a_signal_from_an_exit_code(script: str, status: int) -> None:
    """The wait status of a process that another thread has waited for; from Linux 6.15 on."""
    process = subprocess.Popen(["sh", "-c", script])
    ended = os.pidfd_open(process.pid)
    process.wait()
    assert wait_status(ended) in (status, None)
    os.close(ended)


def test_of_several_that_failed_the_first_in_time_is_named(start: Start, tmp_path: Path) -> None:
    """Not the one with the largest code, nor the first in the order of the ranks: here all have failed by one look."""
    waits = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit({})); print(os.getpid(), flush=True)"
    programs = start(*(f"{waits.format(code)}\nwhile True: signal.pause()" for code in (200, 255, 1)))

    def look() -> None:
        logs = [(tmp_path / f"{name}.log").read_text() for name in ("c", "a", "b")]
        if not all(log.endswith("\n") for log in logs):
            return
        for pid in map(int, logs):
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGUSR1)
            assert select.select([ended], [], [], PATIENCE_S)[0]
            os.close(ended)

    failure = programs.wait(look)
    assert failure is not None
    assert (failure.name, failure.code) == ("c", 1)
    assert set(programs.codes) == {"a", "b", "c"}


def test_a_bar_is_seen_while_it_stands_still(start: Start, told: list[str]) -> None:
    """Nothing comes that could wake the one who reads: whoever waits tells the state."""
    programs = start("import signal; print('\\r 10%\\r 20%', end='', flush=True); signal.pause()")

    def look() -> None:
        if told:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        programs.wait(look)
    assert told == ["a |  20%"]


def test_what_programs_have_started_ends_with_them_however_far_it_went(start: Start, told: list[str]) -> None:
    """In a session of its own, with its parent gone, and deaf to a request to end."""
    deaf = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "print('deaf', flush=True)\n"
        "signal.pause()"
    )
    programs = start(deaf, WAITS)
    until(lambda: {"a | deaf", "b | waits"} <= set(told))
    until(lambda: len(list(label.processes(LAUNCH, label.LAUNCH))) == 2)  # the parent of the deaf one has ended
    programs.end()
    assert not list(label.processes(LAUNCH, label.LAUNCH))


@pytest.mark.parametrize("unlabelled", [True, False])
def test_one_that_is_deaf_is_ended_whatever_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlabelled: bool
) -> None:
    monkeypatch.setattr("testbed.launch.programs.GRACE_S", 0.1)
    told: list[str] = []
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"

    class Bare(Here):
        def start(self, rank: Rank) -> StartedProgram:
            variables = {} if unlabelled else {label.LAUNCH: LAUNCH}
            return HostProgram([sys.executable, "-ISc", deaf], variables)

    programs = Programs(Bare([deaf]), [Rank("a", "a", {})], LAUNCH, tmp_path, lambda _, line: told.append(line))
    programs.start()
    until(lambda: told == ["deaf"])
    program = programs._programs["a"]
    programs.end()
    assert program.exit_code() == 128 + signal.SIGKILL


def test_one_that_cannot_be_started_is_said_and_ends_the_others(tmp_path: Path, told: list[str]) -> None:
    ranks = [Rank(name, name, {}) for name in NAMES[:2]]
    programs = Programs(Here([WAITS, ""]), ranks, LAUNCH, tmp_path, lambda *line: told.append(" | ".join(line)))
    with pytest.raises(BadCommand):
        programs.start()
    programs.end()
    assert not list(label.processes(LAUNCH, label.LAUNCH))


def test_a_start_that_is_under_way_at_the_end_is_ended_too(tmp_path: Path) -> None:
    """As after an interrupt, and no other is begun."""
    slow = Slow([WAITS, WAITS])
    programs = Programs(slow, [Rank(name, name, {}) for name in NAMES[:2]], LAUNCH, tmp_path, lambda *_: None)
    starting = Thread(target=programs.start)
    starting.start()
    assert slow.asked.wait(PATIENCE_S)
    ending = Thread(target=programs.end)
    ending.start()
    until(lambda: programs._over)
    ending.join(0.2)
    assert ending.is_alive(), "a start that is under way can still come to be"
    slow.answer.set()
    for thread in (ending, starting):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not list(label.processes(LAUNCH, label.LAUNCH))
    assert slow.begun == ["a"]


def test_an_engine_that_never_answers_a_start_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.launch.programs.ENGINE_S", 0.2)
    slow = Slow([WAITS])
    programs = Programs(slow, [Rank("a", "a", {})], LAUNCH, tmp_path, lambda *_: None)
    try:
        with pytest.raises(LaunchFailed, match="engine"):
            programs.start()
        programs.end()
    finally:
        slow.answer.set()
        programs._starting.join(PATIENCE_S)
        programs.end()


def test_what_a_look_finds_ends_the_waiting(start: Start) -> None:
    programs = start(WAITS)
    with pytest.raises(OSError, match="full"):
        programs.wait(Mock(side_effect=OSError("the disk is full")))


def test_an_error_in_reading_the_last_output_is_raised_after_the_end(tmp_path: Path) -> None:
    over = Event()

    def hear(_: str, line: str) -> None:
        assert over.wait(PATIENCE_S)
        raise OSError(f"{line} can't be kept")

    programs = Programs(Here(["print('the last')"]), [Rank("a", "a", {})], LAUNCH, tmp_path, lambda *_: None, hear)
    programs.start()
    try:
        assert programs.wait(nothing) is None
    finally:
        over.set()
        programs.end()
    with pytest.raises(OSError, match="the last"):
        programs.check()


def test_a_failure_has_the_last_lines_and_why_there_are_no_more(tmp_path: Path) -> None:
    def hear(_: str, line: str) -> None:
        until(lambda: bool(programs.codes))  # looks are over, which would raise the error themselves
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    script = "raise SystemExit('the reason')"
    programs = Programs(Here([script]), [Rank("a", "a", {})], LAUNCH, tmp_path, lambda *_: None, hear)
    programs.start()
    failure = programs.wait(nothing)
    programs.end()
    assert failure is not None and failure.said == ("the reason",)
    assert any(NOT_HERE[errno.ENOSPC] in hint for hint in failure.hints)
