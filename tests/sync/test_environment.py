"""What the environment must say of a member, and what its variables may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import sync
from testbed.sync.environment import join_by_environment

pytestmark = pytest.mark.unit

WHOLE = {"TESTBED_CONTROLLER": "tcp:localhost:7000", "TESTBED_MEMBER": "w{RANK}", "RANK": "3"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"TESTBED_CONTROLLER": ""}, "TESTBED_CONTROLLER is not set: write TESTBED_CONTROLLER=tcp:HOST:PORT"),
        ({"TESTBED_MEMBER": ""}, "TESTBED_MEMBER is not set"),
        ({"TESTBED_MEMBER": "w{LOCAL}"}, r"TESTBED_MEMBER=w\{LOCAL\}: 'LOCAL' can't be put in"),
        ({"TESTBED_MEMBER": "w{"}, r"TESTBED_MEMBER=w\{: "),
        ({"TESTBED_TLS": "tls", "TESTBED_TOKEN_FILE": "token"}, "TESTBED_TOKEN_FILE and TESTBED_TLS are both set"),
        ({"TESTBED_TOKEN_FILE": "/nowhere/w{RANK}.token"}, "TESTBED_TOKEN_FILE=/nowhere/w3.token: No such file"),
        ({"TESTBED_TLS": "/nowhere/w{RANK}"}, "/nowhere/w3"),
    ],
)
def test_what_is_missing_or_wrong_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        join_by_environment(environ=WHOLE | changed)


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    """It is then that the controller, which is no address here, is looked for."""
    (tmp_path / "w3.token").write_text("hush\n")
    nowhere = {"TESTBED_CONTROLLER": "nowhere", "TESTBED_TOKEN_FILE": f"{tmp_path}/w{{RANK}}.token"}
    with pytest.raises(sync.SyncError, match="nowhere") as caught:
        join_by_environment(environ={**WHOLE, **nowhere, "TESTBED_LISTEN": "127.0.0.1"})
    assert "hush" not in str(caught.value)
