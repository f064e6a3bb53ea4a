"""Errors with fields: the fields survive a place in front of the text, and the way to another process."""

from __future__ import annotations

import pickle

import pytest

from testbed.plan import PlanError
from testbed.sync.errors import FrameError

pytestmark = pytest.mark.pure


def test_a_field_that_was_not_given_has_no_value() -> None:
    error = PlanError("no such codec", field="codec", given="fp8")
    assert (error.field, error.given, error.rule, error.member) == ("codec", "fp8", None, None)
    assert error.details == {"field": "codec", "given": "fp8"}


def test_an_error_with_its_place_keeps_its_fields() -> None:
    error = FrameError("cut", rule="cut", member="a").located("round 3", round=3)
    assert isinstance(error, FrameError) and str(error) == "round 3: cut"
    assert error.details == {"rule": "cut", "member": "a", "round": 3}


def test_an_error_of_another_process_has_its_fields() -> None:
    error = pickle.loads(pickle.dumps(FrameError("cut", rule="cut", member="a")))
    assert isinstance(error, FrameError) and (str(error), error.rule, error.member) == ("cut", "cut", "a")
