"""The bytes of a tensor are its memory, and keep it."""

from __future__ import annotations

import weakref

import pytest
import torch

from testbed.sync.codecs.memory import bytes_of

pytestmark = pytest.mark.pure


def test_a_view_is_the_tensor_s_memory_and_keeps_it() -> None:
    values = torch.tensor([1.0, 2.0])
    alive = weakref.ref(values)
    part = bytes_of(values)[4:]
    values.mul_(2)
    del values
    assert alive() is not None
    assert torch.frombuffer(bytearray(part), dtype=torch.float32).tolist() == [4.0]
    del part
    assert alive() is None
