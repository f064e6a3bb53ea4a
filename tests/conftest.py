"""What holds for every test: it says what it needs, and is skipped only where there is no root for what needs it."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# Tests compute on one thread, as workers do: others run beside them, and a second one of PyTorch's waits by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is imported and collected stays, some million objects: to look through them again and again for garbage took a
# seventh of the unit tests' processor time.
gc.disable()

# No example is held to a time: a busy host takes ten times as long as an idle one.
settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")


MARKS = ("unit", "privileged", "guest")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor", type=int, metavar="N", help="stay on the Nth of the processors that there are")
    parser.addoption("--give-way", metavar="FILE", help="compute on what others leave while they lock the file, shared")


def pytest_configure(config: pytest.Config) -> None:
    """Threads of one interpreter run one at a time anyway. Where another processor is free, each that sends or receives
    wakes one there to wait for the interpreter's lock: tests of sockets took 74 s of processor time, and 24 on one."""
    number = config.getoption("--processor")
    if number is not None:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[number % len(processors)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in MARKS):
            raise pytest.UsageError(f"{item.nodeid} runs in no lane: it bears none of the marks {', '.join(MARKS)}")
    if os.geteuid() == 0:
        return
    for item in items:
        for mark in ("privileged", "guest"):
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: needs root; run it with sudo"))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    if (file := session.config.getoption("--give-way")) is not None:
        threading.Thread(target=_until_unlocked, args=(file,), daemon=True).start()
        _schedule(os.SCHED_IDLE, threading.get_native_id())


def _until_unlocked(file: str) -> None:
    """Once nobody holds the lock, compute as all do: beside two busy processes what is idle gets next to nothing."""
    with Path(file).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            _schedule(os.SCHED_OTHER, int(thread.name))


def _schedule(policy: int, thread: int) -> None:
    os.sched_setscheduler(thread, policy, os.sched_param(0))
