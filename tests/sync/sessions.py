"""Members as threads of one process, each with a session of its own over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from testbed import sync
from testbed.errors import NO_THREAD
from testbed.plan import Plan
from testbed.protocol import Goodbye, Job
from tests.sync.controller import Controller, job
from tests.waiting import PATIENCE_S

T = TypeVar("T")


def run(
    directory: Path,
    plan: Plan,
    work: Callable[[sync.Session], T],
    settings: Job | None = None,
    after_round: int = 0,
) -> dict[str, T]:
    """Run `work` at every member of the plan. Returns the results by member."""
    with Controller(directory, plan, settings or job()) as controller:
        return run_with(controller, work, after_round)


def run_with(
    controller: Controller, work: Callable[[sync.Session], T], after_round: int = 0, certificates: Path | None = None
) -> dict[str, T]:
    """Run `work` at every member of a controller until it has their goodbyes. Returns the results by member."""
    results = together(controller, work, after_round, certificates)
    controller.await_messages(Goodbye, len(results))
    return results


def refuse_threads(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Start no thread whose name has this ending, as where there is no room for one more."""
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name.endswith(ending):
            raise RuntimeError(NO_THREAD)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)


def together(
    controller: Controller, work: Callable[[sync.Session], T], after_round: int = 0, certificates: Path | None = None
) -> dict[str, T]:
    """Run `work` at every member of a controller, which may die meanwhile, on a thread each.

    Of several members' errors the first one in time is raised: the others' say that a peer is gone.
    """
    errors: list[BaseException] = []

    def member(name: str) -> T:
        tls = certificates and certificates / name
        try:
            with sync.join(
                controller.address, name, "127.0.0.1", timeout=PATIENCE_S, after_round=after_round, tls=tls
            ) as session:
                return work(session)
        except BaseException as error:
            errors.append(error)
            raise

    members = controller.plan.members
    with ThreadPoolExecutor(len(members)) as pool:
        ends = {name: pool.submit(member, name) for name in members}
    if errors:
        raise errors[0]
    return {name: end.result() for name, end in ends.items()}
