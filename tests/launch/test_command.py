"""What a command may ask of how its processes train."""

from __future__ import annotations

import pytest

from testbed.launch.command import Command
from testbed.launch.errors import BadCommand

pytestmark = pytest.mark.pure


def test_a_backend_or_a_scheme_is_told_to_processes() -> None:
    assert Command(["python"], backend="wan").planned == {"TESTBED_BACKEND": "wan"}
    assert Command(["python"], scheme="local_sgd:every=4").planned == {"TESTBED_SCHEME": "local_sgd:every=4"}
    assert not Command(["python"]).planned


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Command(["python"], backend="wan", scheme="diloco"), "scheme"),
        (Command(["python"], nproc=2, scheme="diloco"), "nproc"),
        (Command(["python"], scheme="diloco:evry=3"), "scheme"),
    ],
)
def test_what_cannot_be_is_said(command: Command, field: str) -> None:
    with pytest.raises(BadCommand) as caught:
        command.check([])
    assert caught.value.field == field
