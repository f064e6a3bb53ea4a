"""What goes wrong around a run changes nothing about what it came to, nor about another run of the same name."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from rich.console import Console

from testbed.api.entry import ApiPort
from testbed.emulation import label
from testbed.report.page import write_report
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.execute import execute, execute_experiment
from testbed.run.run import Execution
from testbed.run.terminal.display import Display, OutputClosedError, ProgressConsole
from testbed.run.watchdog import DISK_OF, HOST
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import write_json
from tests.run.pair import TOPOLOGY

ROOT = Path(__file__).parents[2]

EXPERIMENT = {"name": "pair", "topology": "pair.yaml", "train": {"model": "cnn", "batch": 4, "rounds": 3}}


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.yaml"


@pytest.mark.tour
@pytest.mark.system
def test_a_page_that_cannot_be_made_leaves_the_run_its_summary(experiment: Path) -> None:
    def fail(_: Path) -> Path:
        raise OSError("no page today")

    done = execute(experiment, {}, False, fail, Display())
    assert (done.finished, done.page) == (True, None)
    summary = json.loads((done.directory / "summary.json").read_text())
    assert summary["training"]["rounds"] == 3
    assert "no page" not in str(summary["reasons"])
    assert "no page today" in (done.directory / "logs" / "report.log").read_text()
    assert (done.directory / "report.html") == write_report(done.directory)


OWNER = """
import sys, time
from testbed.emulation import label
with label.labelled(sys.argv[1]):
    print("up", flush=True)
    time.sleep(600)
"""


@contextmanager
def owned(name: str) -> Iterator[subprocess.Popen[str]]:
    """A network of this name, as far as others can see, which another process has up."""
    words = [sys.executable, "-c", OWNER, name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as up:
        assert up.stdout and up.stdout.readline() == "up\n"
        yield up
        up.kill()
    label.remove_state(name)


@pytest.mark.tour
@pytest.mark.system
def test_a_run_whose_name_is_taken_is_refused_and_takes_nothing_away(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two of one second from two folders would be, should their digits be the same too."""
    name = f"pair-t{os.getpid()}"

    class Same(RunDirectory):
        def __init__(self, experiment: str) -> None:
            super().__init__(experiment)
            self.id = name

    monkeypatch.setattr("testbed.run.execute.RunDirectory", Same)
    with owned(name) as first:
        with pytest.raises(CannotRun, match=name):
            execute(experiment, {}, False, write_report, Display())
        assert first.poll() is None
        assert label.networks().count(name) == 1
    summary = json.loads(Path("runs/latest/summary.json").read_text())
    (reason,) = summary["reasons"]
    assert f"process {first.pid}" in reason and f"clean --name {name}" in reason


@pytest.mark.local
def test_a_taken_port_is_found_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment, make_run = MagicMock(), MagicMock()
    experiment.name = "pair"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        display = Display(Console(file=io.StringIO()), ApiPort(taken.getsockname()[1]))
        with pytest.raises(CannotRun, match="another port"):
            execute_experiment(experiment, "pair", False, write_report, display, make_run)
    make_run.assert_not_called()
    assert not Path("runs").exists()


@pytest.mark.local
@pytest.mark.parametrize("written", [False, True])
def test_wrong_input_leaves_no_run_that_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """As the command of a launch whose current folder the containers can't read."""
    monkeypatch.chdir(tmp_path)
    older = RunDirectory("older")
    older.close()

    def make_run(_: Experiment, directory: RunDirectory, __: Display) -> Execution:
        if written:
            directory.append("events.jsonl", {"at_s": 1.0})
        raise SpecError(Path("pair.yaml"), [Fault("train.files", "the folder can't be read", "another folder")])

    experiment = MagicMock()
    experiment.name = "pair"
    with pytest.raises(SpecError):
        execute_experiment(experiment, "pair", False, write_report, Display(Console(file=io.StringIO())), make_run)
    left = {path.name for path in Path("runs").iterdir()} - {"latest", older.id}
    assert len(left) == written
    assert Path("runs/latest").resolve().name == (left.pop() if written else older.id)


@pytest.mark.local
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "no disk"),
        RunFailed(f"{DISK_OF}runs is full"),
        RunFailed("the Docker engine has not answered", rule=HOST),
    ],
)
def test_a_machine_that_breaks_is_the_run_s_failure_after_the_start_alone(
    error: Exception, started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("testbed.run.execute.removed_at_end", lambda *_, **__: nullcontext())

    def make_run(experiment: Experiment, directory: RunDirectory, display: Display) -> MagicMock:
        manifest = {"started_s": 1.0, **({"training_started_s": 2.0} if started else {})}
        directory.write("manifest.json", manifest)
        run = MagicMock(experiment=experiment, directory=directory, display=display)
        run.execute.side_effect = error
        return run

    experiment, display = MagicMock(), Display(Console(file=io.StringIO()))
    experiment.name = "pair"
    if started:
        assert not execute_experiment(experiment, "pair", False, write_report, display, make_run).finished
    else:
        with pytest.raises(CannotRun):
            execute_experiment(experiment, "pair", False, write_report, display, make_run)
    (reason,) = json.loads(Path("runs/latest/summary.json").read_text())["reasons"]
    assert str(error) in reason


@pytest.mark.local
def test_a_run_whose_directory_is_removed_has_failed_and_nothing_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("testbed.run.execute.removed_at_end", lambda *_, **__: nullcontext())

    def make_run(experiment: Experiment, directory: RunDirectory, display: Display) -> MagicMock:
        directory.write("manifest.json", {"started_s": 1.0, "training_started_s": 2.0})

        def lose(*_: object) -> None:
            shutil.rmtree(directory.path)
            for name in ("final.json", "plans/0001.json"):  # as the controller does at its end
                with pytest.raises(FileNotFoundError):
                    write_json(directory.path / name, {}, directory.path)
            with pytest.raises(FileNotFoundError):
                directory.append("events.jsonl", {})
            raise RunFailed(f"{directory.path} is gone", rule=HOST)

        run = MagicMock(experiment=experiment, directory=directory, display=display)
        run.execute.side_effect = lose
        return run

    experiment, display = MagicMock(), Display(Console(file=io.StringIO()))
    experiment.name = "pair"
    done = execute_experiment(experiment, "pair", False, write_report, display, make_run)
    assert not done.finished and not done.directory.exists()


@pytest.mark.local
def test_a_run_whose_directory_is_removed_at_its_end_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("testbed.run.execute.removed_at_end", lambda *_, **__: nullcontext())

    def conclude(_: object, directory: RunDirectory, *more: object) -> None:
        shutil.rmtree(directory.path)
        directory.write("summary.json", {})

    monkeypatch.setattr("testbed.run.execute.conclude", conclude)
    experiment, said = MagicMock(), io.StringIO()
    experiment.name = "pair"
    done = execute_experiment(
        experiment,
        "pair",
        False,
        write_report,
        Display(Console(file=said, width=500)),
        lambda its, directory, display: MagicMock(experiment=its, directory=directory, display=display),
    )
    assert not done.finished and "is gone" in said.getvalue()


@pytest.mark.local
@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "interrupted"), (AssertionError(), "AssertionError")]
)
def test_an_error_without_a_text_leaves_a_reason(
    error: BaseException, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C in a notebook, where no command turns it into an Interrupted."""
    monkeypatch.chdir(tmp_path)

    def make_run(*_: object) -> Execution:
        raise error

    experiment, display = MagicMock(), Display(Console(file=io.StringIO()))
    experiment.name = "pair"
    with pytest.raises(type(error)):
        execute_experiment(experiment, "pair", False, lambda run: run / "report.html", display, make_run)
    (told,) = json.loads(Path("runs/latest/summary.json").read_text())["reasons"]
    assert reason in told


@pytest.mark.local
def test_a_run_whose_output_nobody_reads_any_longer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `testbed run … | head`."""
    monkeypatch.chdir(tmp_path)
    experiment, make_run = MagicMock(), MagicMock()
    experiment.name = "pair"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output, pytest.raises(OutputClosedError) as raised:
        execute_experiment(experiment, "pair", False, write_report, Display(ProgressConsole(file=output)), make_run)
    make_run.assert_not_called()
    assert json.loads(Path("runs/latest/summary.json").read_text())["reasons"] == [str(raised.value)]
