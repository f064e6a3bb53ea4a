"""What a command may ask of how its processes train."""

from __future__ import annotations

import pytest

from testbed.launch import BadCommand
from testbed.launch.command import Command

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
        (Command(["torchrun", "--standalone", "train.py"]), "command"),
        (Command(["bash", "-c", "torchrun --nnodes=1 x.py"], workers=["a", "b"]), "command"),
    ],
)
def test_what_cannot_be_is_said(command: Command, field: str) -> None:
    with pytest.raises(BadCommand) as caught:
        command.check(["a", "b"])
    assert caught.value.field == field


def test_a_torchrun_of_its_own_may_be_on_one_worker() -> None:
    Command(["torchrun", "--standalone", "train.py"]).check(["a"])
    Command(["torchrun", "--standalone", "train.py"], workers=["a"]).check(["a", "b"])
    Command(["torchrun", "train.py", "--standalone"]).check(["a", "b"])
