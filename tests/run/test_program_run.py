"""Experiments that train by a command: judged by what can be, with what the programs say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.report.page import write_report
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
    done = execute(experiment, {}, False, write_report, Display())
    assert done.finished
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
    assert "What the programs said of themselves" in page
    assert left_of(done.directory.name) == []

    failed = execute(experiment, {"train.command": "[python, no-such-script.py]"}, False, write_report, Display())
    assert not failed.finished
    (reason,) = json.loads((failed.directory / "summary.json").read_text())["reasons"]
    assert "ended with exit code 2" in reason
    assert "no-such-script.py" in reason
    assert left_of(failed.directory.name) == []
