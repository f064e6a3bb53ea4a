"""The environment variables that tell a process which run to join."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.sync import environment
from testbed.sync.environment import MemberEnvironment, join_by_environment, member_of
from testbed.sync.errors import SyncError

pytestmark = pytest.mark.local

CONTROLLER = {"TESTBED_CONTROLLER": "tcp:127.0.0.1:7000"}


def test_a_worker_is_a_member_by_its_own_name() -> None:
    environment = {"TESTBED_CONTROLLER": "unix:/run/testbed/control.sock", "TESTBED_WORKER": "paris-w0"}
    assert member_of(environment) == MemberEnvironment("unix:/run/testbed/control.sock", "paris-w0")
    several = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert member_of(environment | several).name == "paris-w0.1"


def test_the_others_may_come_as_late_as_in_pytorch_s_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    monkeypatch.setattr(environment, "join", lambda *given, **named: asked.update(timeout=given[4], **named))
    join_by_environment("cpu", CONTROLLER | {"TESTBED_MEMBER": "paris", "TESTBED_LISTEN": "127.0.0.1"})
    assert asked == {"timeout": 1800.0, "tls": None}


def test_a_token_that_is_no_text_is_named(tmp_path: Path) -> None:
    token = tmp_path / "paris.token"
    token.write_bytes(b"\xff\xfe")
    with pytest.raises(SyncError) as caught:
        member_of(CONTROLLER | {"TESTBED_MEMBER": "paris", "TESTBED_TOKEN_FILE": str(token)})
    assert caught.value.field == "TESTBED_TOKEN_FILE"


def test_a_machine_shows_its_token_and_listens_where_the_controller_is(tmp_path: Path) -> None:
    token = tmp_path / "paris.token"
    token.write_text("ab12\n")
    environment = CONTROLLER | {"TESTBED_MEMBER": "paris", "TESTBED_TLS": "tls/paris"}
    member = member_of(environment | {"TESTBED_TOKEN_FILE": str(token)})
    assert member == MemberEnvironment("tcp:127.0.0.1:7000", "paris", "127.0.0.1", "ab12", Path("tls/paris"))


def test_a_name_of_this_machine_itself_leads_to_an_address_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian and Ubuntu write 127.0.1.1 beside a machine's own name."""
    monkeypatch.setattr(environment, "first_address", lambda: "10.0.0.5")
    monkeypatch.setattr(environment.socket, "socket", Loopback)
    assert environment.address_towards("node1") == "10.0.0.5"
    assert environment.address_towards("localhost") == environment.address_towards("127.0.1.1") == "127.0.0.1"


class Loopback:
    """A socket whose route leads over the loopback."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, _: object) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 9


def test_variables_name_what_differs_between_processes() -> None:
    environment = {"TESTBED_MEMBER": "w{RANK}", "TESTBED_TLS": "tls/w{RANK}", "TESTBED_LISTEN": "10.0.0.{RANK}"}
    member = member_of(CONTROLLER | environment | {"RANK": "3"})
    assert member == MemberEnvironment("tcp:127.0.0.1:7000", "w3", "10.0.0.3", tls=Path("tls/w3"))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"TESTBED_CONTROLLER": ""}, "TESTBED_CONTROLLER"),
        ({"TESTBED_CONTROLLER": "tcp:ä..b:7000", "TESTBED_MEMBER": "paris"}, "TESTBED_CONTROLLER"),
        ({}, "TESTBED_MEMBER"),
        ({"TESTBED_MEMBER": "a member"}, "TESTBED_MEMBER"),
        ({"TESTBED_MEMBER": "w{RANK}"}, "TESTBED_MEMBER"),
        ({"TESTBED_MEMBER": "w{"}, "TESTBED_MEMBER"),
        ({"TESTBED_MEMBER": "w{TESTBED_CONTROLLER[rank]}"}, "TESTBED_MEMBER"),
        (
            {"TESTBED_MEMBER": "paris", "TESTBED_TOKEN_FILE": "/no/such.token"},
            "TESTBED_TOKEN_FILE",
        ),
    ],
)
def test_what_is_missing_is_named(more: dict[str, str], field: str) -> None:
    with pytest.raises(SyncError, match=field) as caught:
        join_by_environment("cpu", CONTROLLER | more)
    assert caught.value.field == field
