"""Run the tests: `python -m tests gate` runs what a change must pass, `python -m tests verify` runs the rest.

A test's mark says what the test needs. This module alone decides, from the marks, which tests run beside each other:

    gate     style | types | pure and local, a process for each processor | the tour
    verify   system, without the tour | long, and properties by other and more examples  →  guest  →  physics, alone

What a lane prints is in build/tests/LANE.log, and on the terminal where the lane fails. The guest kernel is Debian's,
for x86-64 alone: elsewhere its lane is left out, and that is said.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.guest.kernel import KERNEL, PACKAGE
from tests.marked import marked

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "tests"

#: Seconds between two lines of progress.
PROGRESS_S = 15.0
#: Lines of a failed lane's log that are shown; the rest is in the file.
SHOWN_LINES = 400
#: Seconds in which an interrupted lane may end: its tests remove their containers and networks meanwhile.
END_S = 60.0

#: System tests wait for containers and processes most of the time: this many processes keep two processors busy.
SYSTEM_PROCESSES = 4

#: A process for each processor; each takes tests from the others once it has none left.
A_PROCESSOR_EACH = ("--numprocesses=auto", "--dist=worksteal", "--one-processor-each")

NO_ROOT = "(pure or local)"
#: Hypothesis marks the tests of properties itself.
SEARCHED = "(long or hypothesis)"

PYTEST = (sys.executable, "-m", "pytest", "--durations=15")


def marked_tests(mark: str, unless: str = "") -> tuple[str, ...]:
    """Return the words by which pytest runs the tests that bear `mark`, and not `unless`."""
    return ("-m", f"{mark} and not {unless}" if unless else mark, *marked([mark]))


#: A clean clone's cache would be read by nobody, and writing it takes a tenth of the time.
MYPY = (sys.executable, "-m", "mypy", *(["--cache-dir=/dev/null"] if os.environ.get("CI") else []))


@dataclass(frozen=True, slots=True)
class Lane:
    """A command that runs beside the others of its stage."""

    name: str
    command: Sequence[str]

    @property
    def log(self) -> Path:
        """The file with the command's output."""
        return LOGS / f"{self.name.replace(' ', '-')}.log"


Stage = tuple[Lane, ...]

GATE: tuple[Stage, ...] = (
    (
        Lane("style", (sys.executable, "-m", "ruff", "check", ".")),
        Lane("types", MYPY),
        Lane("pure and local", (*PYTEST, "-m", f"{NO_ROOT} and not long", *A_PROCESSOR_EACH)),
        Lane("tour", (*PYTEST, *marked_tests("tour"), "--numprocesses=2", "--dist=loadfile")),
    ),
)

GUEST: Stage = (Lane("guest", (sys.executable, "-m", "tests.guest")),)

VERIFY: tuple[Stage, ...] = (
    (
        Lane(
            "long",
            (*PYTEST, "-m", f"{NO_ROOT} and {SEARCHED}", "--hypothesis-profile=search", *A_PROCESSOR_EACH),
        ),
        Lane(
            "system",
            (*PYTEST, *marked_tests("system", "tour"), f"--numprocesses={SYSTEM_PROCESSES}", "--dist=loadfile"),
        ),
    ),
    *((GUEST,) if shutil.which(KERNEL) else ()),
    (Lane("physics", (*PYTEST, *marked_tests("physics"))),),
)

PLANS = {"gate": GATE, "verify": VERIFY}


def run(plan: Sequence[Stage]) -> int:
    """Run the stages one after the other, each to its end. Returns 0 if every lane passed, else 1."""
    LOGS.mkdir(parents=True, exist_ok=True)
    if plan is VERIFY and GUEST not in plan:
        print(f"guest: left out, since there is no {KERNEL} here; Debian has it for x86-64: apt-get install {PACKAGE}")
    codes = {lane: code for stage in plan for lane, code in _run_stage(stage).items()}
    for lane, code in codes.items():
        print(f"{lane.name}: {'passed' if code == 0 else f'FAILED with exit code {code}'}, {lane.log}")
        for summary in _summaries(lane):
            print(summary)
    return int(any(codes.values()))


def _run_stage(stage: Stage) -> dict[Lane, int]:
    """Run the lanes beside each other. Returns each lane's exit code."""
    began = shown = time.monotonic()
    codes: dict[Lane, int] = {}
    with _started(stage) as running:
        while len(codes) < len(running):
            for lane, process in running.items():
                if lane not in codes and process.poll() is not None:
                    codes[lane] = process.returncode
                    _say(f"{lane.name} {'passed' if process.returncode == 0 else 'FAILED'}", began)
                    if process.returncode != 0:
                        print(*lane.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], sep="\n", flush=True)
            if time.monotonic() - shown >= PROGRESS_S:
                shown = time.monotonic()
                _say(", ".join(f"{lane.name} {_progress(lane)}" for lane in running if lane not in codes), began)
            time.sleep(0.1)
    return codes


@contextmanager
def _started(stage: Stage) -> Iterator[dict[Lane, subprocess.Popen[bytes]]]:
    """Start the lanes. Those that still run when the block ends, by Ctrl-C for example, are ended.

    Each lane is a session of its own, so that no signal reaches it but those of `_end`: `timeout` sends SIGTERM to all
    processes of its group, which ends pytest before its tests have cleaned up.
    """
    running: dict[Lane, subprocess.Popen[bytes]] = {}
    try:
        for lane in stage:
            with lane.log.open("wb") as log:
                running[lane] = subprocess.Popen(
                    lane.command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        yield running
    finally:
        _end([process for process in running.values() if process.poll() is None])


def _end(lanes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt the lanes as Ctrl-C does. Kill those that run on for END_S, or until the next interrupt."""
    until_s = time.monotonic() + END_S
    try:
        for process in lanes:
            os.killpg(process.pid, signal.SIGINT)
        if lanes:
            with suppress(OSError):  # the terminal may be gone
                print(f"tests under way clean up, for {END_S:g} s at most; Ctrl-C kills them", flush=True)
        for process in lanes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until_s - time.monotonic(), 0.0))
    finally:
        for process in lanes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _progress(lane: Lane) -> str:
    """Return the last percentage that the lane has printed, or "…" before the first."""
    found = re.findall(r"\[ *(\d+)%\]", lane.log.read_text(errors="replace"))
    return f"{found[-1]} %" if found else "…"


def _summaries(lane: Lane) -> list[str]:
    """Return pytest's closing lines: `=== 210 passed, 3 skipped in 80.11s ===`."""
    return re.findall(r"^=+ .* in [\d.]+s.* =+$", lane.log.read_text(errors="replace"), re.MULTILINE)


def _say(what: str, began: float) -> None:
    print(f"{time.monotonic() - began:5.0f} s  {what}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PLANS]:
        sys.exit(f"usage: python -m tests {'|'.join(PLANS)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the lanes are ended, too
    try:
        sys.exit(run(PLANS[sys.argv[1]]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
