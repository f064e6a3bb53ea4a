"""How `testbed doctor` says what it found, the quickstart first; what `cluster up` refuses; interrupts of `cluster`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from testbed.cli import app, machines
from testbed.cli.console import INTERRUPTED
from testbed.emulation.host.doctor import Finding
from testbed.emulation.interrupt import Interrupted
from tests.cli.standing import ROOT


@pytest.mark.local
@pytest.mark.parametrize(
    ("finding", "mark"),
    [
        (Finding("x", "fine"), "✓"),
        (Finding("x", "odd [sic]", "mend it"), "–"),
        (Finding("x", "broken", "mend it", blocks=True), "✗"),
    ],
)
def test_each_finding_is_shown_with_its_weight_and_remedy(
    finding: Finding, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.show([finding])
    shown = capsys.readouterr().out
    assert mark in shown
    assert finding.found in shown
    assert finding.remedy in shown


def first_line(capsys: pytest.CaptureFixture[str], *findings: Finding) -> str:
    machines.show(findings)
    return capsys.readouterr().out.splitlines()[0]


@pytest.mark.pure
def test_the_first_line_says_whether_the_quickstart_runs_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fine, odd, broken = Finding("root", "yes"), Finding("GPUs", "none", "a GPU"), Finding("tc", "no", "it", blocks=True)
    monkeypatch.setattr(machines, "_excess", lambda: None)
    assert "`sudo make emulate`" in first_line(capsys, fine, odd)
    assert "`sudo make emulate`" not in (broken_line := first_line(capsys, fine, broken)) and "tc" in broken_line
    monkeypatch.setattr(machines, "_excess", lambda: "its links carry too much; a scale of 0.5 would fit")
    assert "0.5" in first_line(capsys, fine, odd)


@pytest.mark.local
@pytest.mark.parametrize("words", [(), ("--fix",)])
def test_a_user_without_root_is_told_what_it_needs(words: tuple[str, ...]) -> None:
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [sys.executable, "-B", "-m", "testbed", "doctor", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **nobody)
    except PermissionError:
        pytest.skip("the checkout is in a folder that other users can't read, such as /root")
    assert done.returncode == 3, done.stderr
    assert "run it with sudo" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.pure
def test_the_quickstart_is_one_that_loads() -> None:
    assert machines.QUICKSTART.exists()


@pytest.mark.local
@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize(("checkout", "user", "said"), [(False, 0, "wheel"), (True, 1000, "sudo")])
def test_a_cluster_that_cannot_come_up_from_here_is_refused_before_a_host_is_reached(
    checkout: bool, user: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {north: {address: 10.0.0.1}}")
    started: list[object] = []
    monkeypatch.setattr("testbed.scaleout.cluster.up", lambda *given: started.append(given))
    monkeypatch.setattr(machines, "IS_CHECKOUT", checkout)
    monkeypatch.setattr(machines.os, "geteuid", lambda: user)
    ended = CliRunner().invoke(app, ["cluster", "up", str(tmp_path / "hosts.yaml")])
    assert ended.exit_code == 3
    assert said in " ".join(ended.stderr.split())
    assert started == []


@pytest.mark.local
@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize(("verb", "called"), [("up", "up"), ("doctor", "examine"), ("down", "down")])
def test_an_interrupted_cluster_command_speaks_of_the_cluster_and_not_of_records(
    verb: str, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {north: {address: 10.0.0.1}}")
    monkeypatch.setattr(f"testbed.scaleout.cluster.{called}", Mock(side_effect=Interrupted("SIGINT")))
    monkeypatch.setattr(machines, "IS_CHECKOUT", True)
    monkeypatch.setattr(machines.os, "geteuid", lambda: 0)
    ended = CliRunner().invoke(app, ["cluster", verb, *([str(tmp_path / "hosts.yaml")] if verb == "up" else [])])
    assert ended.exit_code == INTERRUPTED
    assert "cluster" in ended.stderr and "records" not in ended.stderr
