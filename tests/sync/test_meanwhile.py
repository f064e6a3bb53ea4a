from __future__ import annotations

import threading
import time

import pytest

from testbed.sync import meanwhile
from testbed.sync.meanwhile import Meanwhile

pytestmark = pytest.mark.local

#: What happens at once has happened within this; what never happens is waited for that long.
AT_ONCE_S, NEVER_S = 10.0, 0.2


@pytest.fixture(autouse=True)
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meanwhile, "EACH_S", 0.02)


def test_it_speaks_again_and_again_while_a_round_is_on_and_then_no_more() -> None:
    said = threading.Semaphore(0)
    one = Meanwhile("a", said.release)
    one.begins()
    one.begins()
    assert all(said.acquire(timeout=AT_ONCE_S) for _ in range(3))
    one.ends()
    assert all(said.acquire(timeout=AT_ONCE_S) for _ in range(3))
    one.ends()
    while said.acquire(blocking=False):
        pass
    time.sleep(NEVER_S)  # ten times what is between two words
    one.close()
    # One may have been on its way as the last round ended, however long its thread then stood still.
    assert not (said.acquire(blocking=False) and said.acquire(blocking=False))


def test_short_rounds_pass_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meanwhile, "EACH_S", 3600.0)
    said: list[int] = []
    one = Meanwhile("a", lambda: said.append(1))
    for _ in range(5):
        one.begins()
        one.ends()
    one.close()
    assert not said and not any(thread.name == "a: meanwhile" for thread in threading.enumerate())
