"""The time limits of a run whose command trains."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import MagicMock

import pytest

from testbed.run.programs.run import END_S, ProgramTraining
from testbed.run.training import LOOK, LOOK_S


@pytest.mark.pure
def test_the_files_of_programs_are_copied_within_a_limit_of_their_own() -> None:
    guard, programs = MagicMock(), MagicMock(controller=None, record={})
    programs.wait.side_effect = lambda _: guard.allow(LOOK_S, LOOK)
    limits: list[float] = []
    programs.end.side_effect = lambda: limits.append(guard.allow.call_args.args[0])
    training = ProgramTraining(MagicMock(), MagicMock(), MagicMock(), MagicMock(), programs, None)
    with ExitStack() as stack:
        training._train(guard, stack)
    assert limits == [END_S]
    assert END_S > LOOK_S
