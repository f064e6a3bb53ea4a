"""requirements.lock agrees with pyproject.toml, and has all that setup installs, each file with its hash."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from testbed.emulation.containers import requirements
from testbed.emulation.containers.requirements import ROOT, Locked, LockError, canonical, name_and_least

#: What setup.sh installs.
INSTALLED = ("base", "build", "sync", "emulate", "test")


def needed(lock: Mapping[str, Locked], *extras: str) -> set[str]:
    """Return the packages of extras on this machine, with those that they require."""
    found, left = set[str](), [package.name for package in requirements.locked(*extras)]
    while left:
        name = left.pop()
        if name in found or (lock[name].marker and not Requirement(f"{name}; {lock[name].marker}").marker.evaluate()):
            continue
        found.add(name)
        required = map(Requirement, requires(name) or [])
        left += [canonical(one.name) for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.pure
def test_every_requirement_is_locked_within_its_range_and_every_package_has_hashes() -> None:
    lock = requirements.read()
    for name, least in map(name_and_least, requirements.wanted()):
        assert Version(lock[name].version) >= Version(least), name
    text = (ROOT / "requirements.lock").read_text()
    assert sorted(re.findall(r"^([\w.-]+)==", text, re.MULTILINE)) == sorted(lock)
    assert [package.name for package in lock.values() if not package.hashes] == []
    assert sum(len(package.hashes) for package in lock.values()) == text.count("--hash=sha256:")
    assert "://" not in text, "where files come from is for pip's settings to say"


@pytest.mark.pure
def test_what_is_installed_is_what_is_locked() -> None:
    lock = requirements.read()
    found = needed(lock, *INSTALLED)
    for name in found:
        assert Version(version(name)).public == Version(lock[name].version).public, name
    assert {"torch", "markupsafe", "setuptools"} <= found


@pytest.mark.pure
def test_cuda_is_there_for_a_torch_that_needs_it_and_is_not_asked_for() -> None:
    lock = requirements.read()
    needed = requirements.closure(lock, requirements.locked("sync"))
    assert any(package.name.startswith("nvidia-") for package in needed)
    assert not any(package.name.startswith("nvidia-") for package in requirements.locked(*INSTALLED))


@pytest.mark.pure
def test_what_a_worker_needs_is_found_through_what_needs_it() -> None:
    lock = requirements.read()
    names = {package.name for package in requirements.closure(lock, [lock["torch"]])}
    assert {"torch", "jinja2", "markupsafe"} <= names
    assert not names & {"numpy", "pytest"}


@pytest.mark.pure
def test_a_requirement_that_the_lock_does_not_meet_is_told_with_what_to_do(tmp_path: Path) -> None:
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    pyproject = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(pyproject.replace('"torch>=', '"torch>=9999.'))
    with pytest.raises(LockError, match=r"torch>=9999(?s:.*)make update"):
        requirements.locked("sync", root=tmp_path)
    (tmp_path / "pyproject.toml").write_text(pyproject.replace('"torch>=', '"torchmore>=1", "torch>='))
    with pytest.raises(LockError, match="torchmore>=1"):
        requirements.locked("sync", root=tmp_path)
    (tmp_path / "pyproject.toml").write_text(pyproject.replace('"torch>=', '"torch==2.6", "torch>='))
    with pytest.raises(LockError, match=r"torch==2\.6(?s:.*)NAME>=VERSION"):
        requirements.locked("sync", root=tmp_path)


@pytest.mark.local
def test_the_build_is_the_one_of_pips_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an index has a build for CUDA with its hash, and a folder one for the CPU without, pip would take CUDA."""
    torch = requirements.read()["torch"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(LockError, match=f"torch=={torch.version}"):
        list(requirements.chosen([torch]))
    for built in ("1.0", torch.version, f"{torch.version}+cpu", "9999.0"):
        (tmp_path / f"torch-{built}-py3-none-any.whl").touch()
    assert [package.version for package in requirements.chosen([torch])] == [f"{torch.version}+cpu"]


@pytest.mark.pure
def test_an_entry_reads_as_it_is_written() -> None:
    package = Locked("a-b", "1.0", "python_version < '3.12'", ("0" * 64, "1" * 64), ("c", "testbed"))
    assert requirements.parse(f"# a line\n{package}") == {"a-b": package}


@pytest.mark.pure
def test_changes_are_told_by_name() -> None:
    old, new = {"a": "1", "b": "1", "c": "1"}, {"a": "2", "b": "1", "d": "1"}
    assert list(requirements.changes(old, new)) == ["a 1 → 2", "c 1 → none", "d none → 1"]


@pytest.mark.local
@pytest.mark.parametrize(
    ("module", "extras"),
    [
        ("testbed.controller.standalone, testbed.controller.service", ("base", "controller")),
        ("testbed.cli, testbed.simulation.simulate, testbed.planning, testbed.report.page", ("base",)),
    ],
)
def test_a_program_imports_no_package_that_its_extras_lack(module: str, extras: tuple[str, ...]) -> None:
    program = f"import sys; before = {{*sys.modules}}; import {module}; print(*({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    lock, owners = requirements.read(), packages_distributions()
    imported = {canonical(name) for word in done.stdout.split() for name in owners.get(word.partition(".")[0], ())}
    assert not any(word.startswith("mininet.") for word in done.stdout.split()), "no Mininet where nothing is emulated"
    assert imported & set(lock) <= needed(lock, *extras)
