"""The exit codes and texts of `make dist` and `make smoke`."""

from __future__ import annotations

from unittest.mock import MagicMock, Mock

import pytest
from docker.errors import APIError

from containers.dist import INTERRUPTED, DistError, _run_in, exit_code
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
def test_a_command_in_the_image_has_its_status_and_words_and_leaves_no_container() -> None:
    client = MagicMock()
    container = client.containers.create.return_value
    container.wait.return_value = {"StatusCode": 3}
    container.logs.return_value = b"no root"
    assert _run_in(client, "image", ("testbed", "doctor")) == (3, "no root")
    client.containers.create.assert_called_once_with("image", ["doctor"], entrypoint=["testbed"], network_mode="none")
    container.remove.assert_called_once_with(force=True)


@pytest.mark.pure
def test_what_went_well_or_not_is_in_the_code() -> None:
    assert (exit_code(lambda: True), exit_code(lambda: False)) == (0, FAILED)
