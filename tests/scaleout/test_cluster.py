"""The copy of a hosts file that `cluster down` reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.scaleout.cluster import portable_text
from testbed.spec.hosts import Hosts

pytestmark = pytest.mark.pure


def test_what_is_kept_of_a_hosts_file_names_the_same_from_another_folder(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    hosts = {"a": {"address": "10.0.0.1", "key": "keys/id"}, "b": {"address": "10.0.0.2", "port": 2222}}
    file.write_text(yaml.safe_dump({"known_hosts": "known", "hosts": hosts}))
    loaded = Hosts.load(file)
    (tmp_path / "elsewhere").mkdir()
    again = tmp_path / "elsewhere" / "hosts.yaml"
    again.write_text(portable_text(loaded))
    other = Hosts.load(again)
    assert other.path(other.spec.known_hosts or "") == (tmp_path / "known").resolve()
    assert other.path(other.by_name["a"].key or "") == (tmp_path / "keys" / "id").resolve()
    assert other.by_name["b"] == loaded.by_name["b"]
