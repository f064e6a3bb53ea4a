"""What doctor says: every finding that is not well comes with what to do, in words and as JSON."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import CANNOT, app
from testbed.emulation import budget, doctor
from testbed.emulation.doctor import Finding


@pytest.fixture(autouse=True)
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "KEPT", tmp_path / "budget.json")


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.privileged
def test_a_machine_that_is_set_up_lacks_nothing() -> None:
    findings = doctor.examine()
    assert not [finding for finding in findings if finding.blocks]
    found = named(findings)
    assert {"root", "programs", "mininet", "Docker engine", "budget"} <= found.keys()
    assert sum("this is what `auto` takes" in finding.found for finding in findings) == 1
    assert found["budget"].remedy


@pytest.mark.privileged
def test_json_holds_the_same_findings() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [each["name"] for each in told] == [finding.name for finding in doctor.examine()]
    assert all(each.keys() == {"name", "found", "remedy", "blocks"} for each in told)


@pytest.mark.unit
def test_without_root_it_says_to_use_sudo_and_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    findings = named(doctor.examine())
    assert findings["root"].blocks
    assert "sudo" in findings["root"].remedy
    assert all("needs root" in finding.remedy for name, finding in findings.items() if name.startswith("shaping"))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == CANNOT == 3
    assert next(each for each in json.loads(result.stdout) if each["name"] == "root")["blocks"]


@pytest.mark.unit
def test_on_a_bare_machine_every_complaint_has_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No programs, no Mininet, no engine, no root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    findings = doctor.examine()
    blocking = [finding for finding in findings if finding.blocks]
    assert {"root", "programs", "mininet", "Docker engine"} <= {finding.name for finding in blocking}
    assert all(finding.remedy for finding in blocking)
    packages = set(named(findings)["programs"].remedy.removeprefix("apt-get install ").split())
    assert packages == set(doctor.PROGRAMS.values())


@pytest.mark.unit
@pytest.mark.parametrize(
    ("finding", "mark"),
    [
        (Finding("x", "fine"), "✓"),
        (Finding("x", "odd", "mend it"), "–"),
        (Finding("x", "broken", "mend it", blocks=True), "✗"),
    ],
)
def test_each_finding_is_shown_with_its_weight_and_remedy(
    finding: Finding, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor.show([finding], as_json=False)
    shown = capsys.readouterr().out
    assert mark in shown
    assert finding.found in shown
    assert finding.remedy in shown
