"""Hosts files: what they say, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.spec.errors import SpecError
from testbed.spec.hosts import MOST_HOSTS, Hosts

pytestmark = pytest.mark.pure


def load(folder: Path, **changed: Any) -> Hosts:
    file = folder / "hosts.yaml"
    hosts = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2", "user": "admin", "folder": "/srv/testbed/"}}
    file.write_text(yaml.safe_dump({"hosts": hosts} | changed, sort_keys=False))
    return Hosts.load(file)


def test_a_host_needs_an_address_and_nothing_else(tmp_path: Path) -> None:
    first, second = load(tmp_path).by_name.values()
    assert (first.address, first.user, first.port, first.key, first.folder) == (
        "10.0.0.1",
        "root",
        22,
        None,
        "/opt/testbed",
    )
    assert (second.user, second.folder) == ("admin", "/srv/testbed")


def test_files_that_it_names_lie_from_its_own_folder_on(tmp_path: Path) -> None:
    hosts = load(tmp_path, known_hosts="keys/known_hosts")
    assert hosts.path("keys/known_hosts") == tmp_path / "keys/known_hosts"
    assert hosts.path("~/.ssh/id") == Path.home() / ".ssh/id"


@pytest.mark.parametrize(
    ("changed", "field", "said"),
    [
        ({"hosts": {}}, "hosts", "1"),
        ({"hosts": {"a": {}}}, "hosts.a.address", "required"),
        ({"hosts": {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.1"}}}, "hosts.b.address", ""),
        ({"hosts": {"a": {"address": "example.org"}}}, "hosts.a.address", "10.0.0.1"),
        ({"hosts": {"a": {"address": "127.0.0.1"}}}, "hosts.a.address", "127.0.0.1"),
        ({"hosts": {"A B": {"address": "10.0.0.1"}}}, "hosts.A B", "match"),
        ({"hosts": {"a": {"address": "10.0.0.1", "folder": "testbed"}}}, "hosts.a.folder", "/"),
        ({"hosts": {"a": {"address": "10.0.0.1", "folder": "/"}}}, "hosts.a.folder", "/"),
        ({"hosts": {"a": {"address": "10.0.0.1", "folder": "/opt/$(id)"}}}, "hosts.a.folder", "match"),
        ({"hosts": {"a": {"address": "10.0.0.1", "user": "-oProxyCommand=x"}}}, "hosts.a.user", "match"),
        ({"hosts": {"a": {"address": "10.0.0.1", "port": 0}}}, "hosts.a.port", "1"),
        ({"hosts": {"a": {"address": "10.0.0.1", "key": "~no-such-user/id"}}}, "hosts.a.key", "~/.ssh"),
        ({"known_hosts": "~no-such-user/known_hosts"}, "known_hosts", "~/.ssh"),
        ({"host": {}}, "host", "`hosts`"),
        ({"hosts": {f"h{n}": {"address": f"10.0.1.{n}"} for n in range(MOST_HOSTS + 1)}}, "hosts", "32 hosts"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write_instead(
    tmp_path: Path, changed: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(SpecError) as error:
        load(tmp_path, **changed)
    assert [fault.field for fault in error.value.faults] == [field]
    assert said in str(error.value)
