"""The error of a thread that can't start names the limit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from testbed.errors import NO_THREAD
from testbed.sync.control_connection import ControlConnection
from testbed.sync.errors import SyncError
from testbed.sync.executor import AsyncExecutor
from testbed.sync.reports import ProgressReporter
from testbed.sync.transport import Listener, sockets
from tests.sync.keys import settings_of
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

NOBODY = 65534
#: The limit on processes does not hold for root.
PROGRAM = f"""
import os, resource, threading
from testbed.sync.errors import SyncError
from testbed.sync.executor import start
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setuid({NOBODY})
try:
    start(threading.Thread(name="to paris-w0", target=print))
except SyncError as error:
    print(error)
"""


def test_a_thread_for_which_there_is_no_room() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert "`to paris-w0`" in said.stdout, said


def accept() -> None:
    with sockets.listen("127.0.0.1", PATIENCE_S) as accepting:
        Listener(accepting, settings_of("b"), cast(Any, None))


def renew() -> None:
    ControlConnection(cast(Any, None), "c", lambda: (), 1.0, cast(Any, None)).start()


def report() -> None:
    ProgressReporter(lambda: None).start("a")


@pytest.mark.parametrize(("begin", "named"), [(accept, "`accept`"), (renew, "`renew`"), (report, "`a: progress`")])
def test_each_part_of_a_member_names_the_thread_for_which_there_is_no_room(
    begin: Callable[[], None], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError(NO_THREAD)))
    with pytest.raises(SyncError) as caught:
        begin()
    assert named in str(caught.value)


def test_a_round_that_never_began_ends_with_an_error_that_says_so() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def first() -> Callable[[], int]:
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return lambda: 1

    executor = AsyncExecutor("a")
    works = [executor.begin(first), executor.begin(lambda: lambda: 2)]
    assert begun.wait(PATIENCE_S)
    assert executor._pools is not None
    starting = executor._pools[0]

    def cancelled() -> bool:
        with starting._shutdown_lock:  # held until the jobs that wait are cancelled
            return bool(starting._shutdown)

    closing = threading.Thread(target=executor.close)
    closing.start()
    until(cancelled)
    goes_on.set()
    with pytest.raises(SyncError) as caught:
        works[1].wait()
    closing.join()
    assert caught.value.rule == "closed" and works[0].wait() == 1
