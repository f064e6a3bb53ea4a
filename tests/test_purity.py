"""A pure test that uses the outside world fails, wherever it does so."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from testbed.controller.model.clocks import SystemClocks
from tests.conftest import GUARD
from tests.purity import ImpureError


@pytest.fixture
def guarded() -> Iterator[None]:
    """Install the guard as in a pure test. This test is `local`, so that it may catch what the guard raises."""
    GUARD.on = True
    yield
    GUARD.on = False


@pytest.mark.local
@pytest.mark.parametrize(
    ("impure", "says"),
    [
        (lambda: threading.Thread(target=print).start(), "starts a thread"),
        (lambda: socket.socket().close(), "makes a socket"),
        (lambda: subprocess.run(["true"], check=True), "starts a process"),
        (lambda: time.sleep(0), "sleeps"),
        (lambda: time.monotonic(), "reads time.monotonic"),
        (lambda: SystemClocks().unix(), "reads time.time"),
    ],
)
def test_what_is_impure_is_named(guarded: None, impure: Callable[[], object], says: str) -> None:
    with pytest.raises(ImpureError, match=says):
        impure()


@pytest.mark.local
def test_the_guard_is_off_once_it_has_failed_a_test(guarded: None) -> None:
    with pytest.raises(ImpureError):
        time.sleep(0)
    time.sleep(0)


@pytest.mark.pure
def test_pytest_s_own_clocks_are_its_own() -> None:
    assert GUARD.on


@pytest.mark.pure
def test_no_file_of_a_pure_test_waits_for_the_disk() -> None:
    os.fsync(-1)
