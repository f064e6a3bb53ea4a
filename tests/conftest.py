"""Rules for every test: one mark says what the test needs, and a pure test is held to its mark."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import NoReturn

import pytest
from hypothesis import settings

from testbed.compiler import CompilerError, library
from testbed.emulation.interrupt import NUMBERS
from tests.purity import PurityGuard

# Tests compute on one thread, as workers do: others run beside them, and a second one of PyTorch's waits by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is imported and collected stays, some million objects: to look through them again and again for garbage took a
# seventh of the unit tests' processor time.
gc.disable()

# What lets a change through draws the same examples at every run, and few. `make verify` draws others, and more. No
# example is held to a time: a busy host takes ten times as long as an idle one.
settings.register_profile("gate", deadline=None, derandomize=True, database=None, max_examples=30)
settings.register_profile("search", deadline=None, max_examples=100)
settings.load_profile("gate")

#: What a test may need (pyproject.toml says what each mark means). A test bears exactly one of these.
NEEDS = ("pure", "local", "system", "physics", "guest")
ROOTS = ("system", "physics", "guest")

GUARD = PurityGuard()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a registry that forgets the policies that a test loads."""
    from testbed import plugins  # slow to import, and of use to few tests
    from testbed.planning.policy import REGISTRY

    before = dict(REGISTRY)
    monkeypatch.setattr(plugins, "_LOADED", {})
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restore the signal handlers after the test, since an interrupted program goes on ignoring signals."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup` it is ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-processor-each", action="store_true", help="keep each xdist process on one processor")


def pytest_configure(config: pytest.Config) -> None:
    """Install the guard of pure tests, and keep an xdist process on its processor.

    Threads of one interpreter run one at a time anyway. Where another processor is free, each thread that sends or
    receives wakes one there to wait for the interpreter's lock: tests of sockets took 74 s of processor time, and 24
    on one processor.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and config.getoption("--one-processor-each"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[int(worker.removeprefix("gw")) % len(processors)]})
    with suppress(ModuleNotFoundError):
        import_module("urllib3")  # makes a socket as it is imported, to see whether there is IPv6
    with suppress(CompilerError, OSError):  # a test that needs the planner's C core says then what is missing
        library("planning")  # compiled here, because no pure test may start a compiler
    GUARD.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        needs = {need for need in NEEDS if item.get_closest_marker(need)}
        if len(needs) != 1:
            _refuse(f"{item.nodeid} bears {sorted(needs)}: mark it with one of {', '.join(NEEDS)}")
        if item.get_closest_marker("tour") and needs != {"system"}:
            _refuse(f"{item.nodeid} is in the tour, and so must be marked `system`, not {needs.pop()}")
    if os.geteuid() == 0:
        return
    for item in items:
        for mark in ROOTS:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: needs root; run it with sudo"))


def _refuse(why: str) -> NoReturn:
    """End the session with a reason. Of an error in one of its processes xdist says only that the process ended."""
    print(why, file=sys.__stderr__)
    raise pytest.UsageError(why)


def pytest_collection_finish() -> None:
    if typer := sys.modules.get("typer.testing"):
        # CliRunner makes all verbs again at each call, in 40 ms of a processor: more than most of them take.
        typer._get_command = cache(typer._get_command)  # type: ignore[attr-defined]
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    GUARD.on = item.get_closest_marker("pure") is not None
    try:
        return (yield)
    finally:
        GUARD.on = False
