"""Buffers that are used again."""

from __future__ import annotations

import pytest

from testbed.sync.buffers import Scratch

pytestmark = pytest.mark.pure


def test_the_same_memory_serves_until_more_is_asked_for() -> None:
    scratch = Scratch()
    scratch.room(4)[:] = b"data"
    assert [bytes(scratch.room(length)) for length in (4, 2, 4)] == [b"data", b"da", b"data"]
    assert len(scratch.room(5)) == 5
    assert len(scratch.room(4)) == 4
