"""Experiments that train by a command: judged by what can be, with what the programs say of themselves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from testbed.report.page import write_report
from testbed.report.record import RunRecord
from testbed.run.execute import execute
from testbed.run.terminal.display import Display
from tests.cli.standing import left_of, write

pytestmark = pytest.mark.system

#: Sends another worker some bytes, and says how it went.
SCRIPT = """
import os, socket, sys, time
peers = dict(pair.split("=") for pair in os.environ["TESTBED_PEERS"].split(","))
rank = int(os.environ["RANK"])

def connected():
    while True:
        try:
            return socket.create_connection((peers["lima-w0"], 5000))
        except OSError:  # the other has not begun to listen
            time.sleep(0.1)

listener = socket.create_server(("", 5000))
time.sleep(1)
if rank == 0:
    for step in range(3):
        with connected() as connection:
            connection.sendall(bytes(200_000))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        print(f"step={step} loss={1 / (step + 1)}")
        time.sleep(1)
else:
    for step in range(3):
        with listener.accept()[0] as connection:
            while connection.recv(1 << 16):
                pass
    print('{"step": 3, "heard": 600000}')
    open("/out/heard.txt", "w").write("600000")
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    (files / "talk.py").write_text(SCRIPT)
    tmp_path.chmod(0o755)
    write(tmp_path, "andes", {"quito": 1, "lima": 1}, ("quito", "lima", "20mbit", "10ms"))
    value = {
        "name": "talk",
        "topology": "andes.yaml",
        "train": {"command": ["python", "talk.py"], "files": "files", "environment": {"WHO": "us"}},
        "events": [{"at": "1s", "change": {"link": "quito->lima", "rate": "10mbit"}}],
    }
    file = tmp_path / "talk.yaml"
    file.write_text(yaml.safe_dump(value))
    return file


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_command_is_run_judged_and_shown(experiment: Path) -> None:
    printed = io.StringIO()
    done = execute(experiment, {}, False, write_report, Display(Console(file=printed)))
    assert done.finished
    assert "change quito->lima" in printed.getvalue()
    summary = json.loads((done.directory / "summary.json").read_text())
    assert any("compute" in what for what in summary["not_judged"])
    assert not any("slower" in reason or "parameters" in reason for reason in summary["reasons"])
    assert [event["kind"] for event in summary["events"]] == ["change"]
    assert summary["links"]["quito->lima"]["rtt_error_ms"] is not None
    curves = records(done.directory / "curves.jsonl")
    assert [(line["program"], line["step"]) for line in curves if "loss" in line["values"]] == [
        ("quito-w0", 0),
        ("quito-w0", 1),
        ("quito-w0", 2),
    ]
    assert {"heard": 600000.0} in [line["values"] for line in curves]
    assert (done.directory / "out/lima-w0/heard.txt").read_text() == "600000"
    tcp = records(done.directory / "traffic.jsonl")[-1]["tcp"]
    assert tcp["quito-w0"]["sent_segments"] > 3
    page = (done.directory / "report.html").read_text()
    assert "Metrics that the programs printed" in page
    assert left_of(done.directory.name) == []

    failed = execute(experiment, {"train.command": "[python, no-such-script.py]"}, False, write_report, Display())
    assert not failed.finished
    (reason,) = json.loads((failed.directory / "summary.json").read_text())["reasons"]
    assert "ended with exit code 2" in reason
    assert "no-such-script.py" in reason
    assert left_of(failed.directory.name) == []


#: Trains alone: a progress bar, the Trainer's dictionaries, a warning of PyTorch's, and what is said once.
ALONE = """
import sys, time
print("seed=42 hidden=64")
for step in range(1, 101):
    sys.stderr.write(f"\\r{step}%|{'#' * (step // 10)} | {step}/100 [bar_loss={1 / step:.4f}]")
    sys.stderr.flush()
    time.sleep(0.01)
sys.stderr.write("\\n")
for step in range(2):
    print({"loss": 2.5 - step, "learning_rate": 5e-05})
    print(f"Loss: {1234.5 + step:,}")
    print("[W1126 22:30:01.123 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. err=-3")
"""


def test_a_command_that_uses_no_link_is_not_trusted_and_its_curves_are_those_of_training(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (experiment.parent / "files/alone.py").write_text(ALONE)
    done = execute(experiment, {"train.command": "[python, alone.py]", "events": "[]"}, False, write_report, Display())
    assert done.verdict == "suspect"
    reasons = json.loads((done.directory / "summary.json").read_text())["reasons"]
    assert any(reason.startswith("no link was used, so nothing was emulated") for reason in reasons)
    said = capsys.readouterr().out
    assert "no link was used" in said
    assert "lima-w0  | 100%|########## | 100/100" in said
    found: dict[str, list[float]] = {}
    for line in records(done.directory / "curves.jsonl"):
        for name, value in line["values"].items() if line["program"] == "lima-w0" else ():
            found.setdefault(name, []).append(value)
    assert found.pop("bar_loss") == [float(f"{1 / step:.4f}") for step in range(1, 101)]
    assert found == {"hidden": [64], "loss": [2.5, 1.5], "learning_rate": [5e-05] * 2, "Loss": [1234.5, 1235.5]}
    assert set(RunRecord.read(done.directory).curves) == {"bar_loss", "loss", "learning_rate", "Loss"}
