"""The exit codes and texts of `make dist` and `make smoke`."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from docker.errors import APIError

from containers.dist import INTERRUPTED, DistError, exit_code
from testbed.emulation.containers.engine import EngineError
from testbed.emulation.interrupt import Interrupted
from testbed.errors import CANNOT, FAILED


@pytest.mark.pure
@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (APIError("no space left"), CANNOT),
        (EngineError("no engine"), CANNOT),
        (DistError("no setuptools"), CANNOT),
        (FileExistsError("make-smoke is up"), CANNOT),
        (Interrupted("SIGTERM"), INTERRUPTED),
    ],
)
def test_an_error_ends_in_a_code_and_its_text(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(Mock(side_effect=error)) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.pure
def test_what_went_well_or_not_is_in_the_code() -> None:
    assert (exit_code(lambda: True), exit_code(lambda: False)) == (0, FAILED)
