"""Files that come with the package: presets by name, and the folder that builds go to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed import resources
from testbed.resources import PRESETS, SHARE, preset_or_file, presets
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_is_found_by_its_name(kind: str) -> None:
    found = list(presets(kind))
    assert len(found) > 10
    assert [preset_or_file(kind, Path(file.stem)) for file in found] == found


def test_a_file_of_the_users_goes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert preset_or_file("topology", Path("quickstart")) == SHARE / "topologies" / "quickstart.yaml"
    Path("quickstart").mkdir()  # a copy of a run, say
    assert preset_or_file("topology", Path("quickstart")) == SHARE / "topologies" / "quickstart.yaml"
    Path("quickstart").rmdir()
    Path("quickstart").write_text("")
    assert preset_or_file("topology", Path("quickstart")) == Path("quickstart")


@pytest.mark.parametrize("name", ["nowhere", "quickstart.yaml", "./x/quickstart", "/quickstart"])
def test_what_is_no_preset_stays_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert preset_or_file("experiment", Path(name)) == Path(name)


def test_experiments_and_topologies_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Experiment.load(Path("smoke")).name == "smoke"
    assert Topology.load(Path("netstorm9")).name == "netstorm9"


def test_an_installed_package_builds_in_a_cache_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert resources.cache() == tmp_path / "testbed" / resources.__version__
    monkeypatch.setattr(resources.os, "geteuid", lambda: 0)
    assert resources.cache() == Path("/var/cache/testbed") / resources.__version__


@pytest.mark.parametrize("file", ["CITATION.cff", ".devcontainer/devcontainer.json", "docs/setup.md", "CHANGELOG.md"])
def test_the_version_is_the_same_wherever_it_is_written(file: str) -> None:
    text = (SHARE / file).read_text(encoding="utf-8")
    found = set(re.findall(r"(?:^version: |wan-testbed:|wan_testbed-|^## \[)(\d+\.\d+\.\d+)", text, re.MULTILINE))
    assert resources.__version__ in found
    assert file == "CHANGELOG.md" or len(found) == 1
