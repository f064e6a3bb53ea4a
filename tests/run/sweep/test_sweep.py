"""Sweeps: the runs that they make, their record, and the runs that a later session still makes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from testbed.api.entry import ApiPort
from testbed.cli import app
from testbed.cli.sweep_progress import SweepProgress
from testbed.emulation.interrupt import Interrupted
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import Comparison
from testbed.run.sweep.planned_run import PlannedRun
from testbed.run.sweep.sweep import (
    COLUMNS,
    Execute,
    Make,
    SweepRecord,
    Watcher,
    _point_row,
    _run_rows,
    make_sweep,
    one_after_another,
    planned_sweep,
)
from testbed.run.terminal.display import Display, ProgressConsole
from testbed.simulation.simulate import simulate
from testbed.spec.errors import SpecError
from testbed.spec.sweep import Sweep
from testbed.starts import new_policy
from tests.run.running import NOTHING, REPOSITORY, Running
from tests.run.sweep.test_planned_run import PAIR, TOPOLOGY
from tests.run.terminal.test_display import Terminal
from tests.simulation import experiments
from tests.waiting import PATIENCE_S, until

SWEEP: dict[str, Any] = {
    "name": "rates",
    "experiment": "experiment.yaml",
    "axes": {"scale": [1, 0.5]},
    "seeds": [1, 2],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an experiment that can be simulated and a sweep of it."""
    monkeypatch.chdir(tmp_path)
    experiments.write(tmp_path)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changed: Any) -> Path:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP | changed))
    return folder / "sweep.yaml"


class Simulated:
    """Makes runs by simulating them. After `most` of them it is interrupted in the next one."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.made: list[Mapping[str, str]] = []
        self._most = most

    def __call__(self, file: Path, overrides: Mapping[str, str]) -> Executed:
        if len(self.made) == self._most:
            raise KeyboardInterrupt
        self.made.append(overrides)
        display = Display(Console(file=io.StringIO()))
        return simulate(file, overrides, False, lambda run: run, display)


def sweep(
    folder: Path, execute: Execute, resume: bool = False, overrides: Mapping[str, str] | None = None
) -> tuple[Comparison, str]:
    """All runs, and what was said meanwhile."""
    return sweep_by(folder, partial(one_after_another, execute), resume, overrides)


def sweep_by(
    folder: Path, make: Make, resume: bool = False, overrides: Mapping[str, str] | None = None
) -> tuple[Comparison, str]:
    said = io.StringIO()

    @contextmanager
    def watch(compared: Comparison) -> Iterator[SweepProgress]:
        with SweepProgress(Console(file=said, width=200), compared) as progress:
            yield progress

    compared, _ = make_sweep(Sweep.load(folder / "sweep.yaml"), resume, make, watch, overrides)
    return compared, said.getvalue()


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "runs" / "sweeps" / "rates" / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.local
def test_every_combination_is_run_with_every_seed(folder: Path) -> None:
    execute = Simulated()
    compared, said = sweep(folder, execute)
    assert [(each["scale"], each["seed"]) for each in execute.made] == [
        ("1", "1"), ("0.5", "1"), ("1", "2"), ("0.5", "2"),
    ]  # fmt: skip
    assert compared.finished
    assert "1 of 4: 1, seed 1\n" in said
    assert "4 of 4: 0.5, seed 2; about " in said


@pytest.mark.local
def test_the_tables_have_each_run_and_each_point(folder: Path) -> None:
    sweep(folder, Simulated())
    runs, points = rows(folder, "runs.csv"), rows(folder, "points.csv")
    assert [(row["scale"], row["seed"], row["repeat"], row["verdict"]) for row in runs] == [
        ("1", "1", "1", "simulated"), ("0.5", "1", "1", "simulated"),
        ("1", "2", "1", "simulated"), ("0.5", "2", "1", "simulated"),
    ]  # fmt: skip
    for row in runs:
        manifest = json.loads((folder / "runs" / row["run"] / "manifest.json").read_text())
        assert (str(manifest["seed"]), manifest["scale"]) == (row["seed"], float(row["scale"]))
        summary = json.loads((folder / "runs" / row["run"] / "summary.json").read_text())
        assert float(row["seconds_per_round_p50"]) == summary["sync"]["seconds_per_round"]["p50"]
    whole, half = (float(point["seconds_per_round_p50"]) for point in points)
    assert half > whole  # over links of half the rate
    for point in points:
        own = sorted(float(row["wan_bytes"]) for row in runs if row["scale"] == point["scale"])
        assert point["runs"] == "2"
        assert float(point["wan_bytes"]) == pytest.approx(sum(own) / 2)
        assert [float(point["wan_bytes_least"]), float(point["wan_bytes_most"])] == own


@pytest.mark.local
def test_a_run_that_is_lost_with_its_machine_is_made_again_and_counts_once(folder: Path) -> None:
    def make(file: Path, runs: Sequence[PlannedRun], watcher: Watcher) -> Iterator[tuple[PlannedRun, Executed]]:
        watcher.begin(runs[0])
        watcher.lost("host a is lost", runs[0])
        watcher.lost("host b is lost", None)
        yield from one_after_another(Simulated(), file, runs, watcher)

    compared, said = sweep_by(folder, make)
    assert compared.finished
    assert said.startswith(
        "1 of 4: 1, seed 1\nhost a is lost; its run is made again: 1, seed 1\nhost b is lost; it had no run\n"
        "1 of 4: 1, seed 1\n"
    )
    assert len(rows(folder, "runs.csv")) == 4


@pytest.mark.local
@pytest.mark.parametrize("left", [None, "{"])
def test_a_summary_that_is_gone_or_damaged_leaves_its_figures_empty(left: str | None, folder: Path) -> None:
    made, _ = sweep(folder, Simulated())
    first = next(iter(made.made.values())).directory / "summary.json"
    first.unlink()
    if left is not None:
        first.write_text(left)
    rows = [*_run_rows(made)]
    assert [row["wall_seconds"] is None for row in rows].count(True) == 1


@pytest.mark.local
def test_a_later_sitting_makes_what_is_missing(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(folder, Simulated(most=3))
    assert len(rows(folder, "runs.csv")) == 3
    execute = Simulated()
    compared, said = sweep(folder, execute, resume=True)
    assert [(each["scale"], each["seed"]) for each in execute.made] == [("0.5", "2")]
    assert compared.finished
    assert said.startswith("3 of 4 runs are already made\n4 of 4: 0.5, seed 2\n")
    assert len({row["run"] for row in rows(folder, "runs.csv")}) == 4
    sweep(folder, nothing := Simulated(), resume=True)
    assert nothing.made == []


@pytest.mark.local
def test_what_changed_or_was_taken_away_is_missing(folder: Path) -> None:
    compared, _ = sweep(folder, Simulated())
    gone = compared.made[compared.planned[1].key].directory
    shutil.rmtree(gone)
    sweep(folder, execute := Simulated(), resume=True)
    assert [(each["scale"], each["seed"]) for each in execute.made] == [("0.5", "1")]
    experiments.write(folder, train={"model": "synthetic", "parameters": 150_000, "rounds": 9})
    sweep(folder, execute := Simulated(), resume=True)
    assert len(execute.made) == 4
    write(folder, seeds=[1, 2, 3])
    sweep(folder, execute := Simulated(), resume=True)
    assert {each["seed"] for each in execute.made} == {"3"}


@pytest.mark.local
def test_the_first_complete_run_of_a_key_counts(folder: Path) -> None:
    compared, _ = sweep(folder, Simulated())
    run = compared.planned[0]
    first = compared.made[run.key]
    with SweepRecord("rates") as record:
        record.add(run, Simulated()(folder / "experiment.yaml", run.overrides))
        assert record.complete()[run.key].directory == first.directory


@pytest.mark.local
def test_a_run_that_fails_is_counted_and_made_again_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated()

    def failing(file: Path, overrides: Mapping[str, str]) -> Executed:
        with monkeypatch.context() as patched:
            if overrides == {"scale": "0.5", "seed": "1"}:
                patched.setattr("testbed.simulation.simulate.train", fails)
            return simulated(file, overrides)

    def fails(*_: object) -> None:
        raise RunFailed("the members lost each other")

    compared, _ = sweep(folder, failing)
    assert not compared.finished
    assert [row["verdict"] for row in rows(folder, "runs.csv")] == ["simulated", "failed", "simulated", "simulated"]
    (half,) = (row for row in rows(folder, "points.csv") if row["scale"] == "0.5")
    assert (half["runs"], half["failed"]) == ("2", "1")
    sweep(folder, execute := Simulated(), resume=True)
    assert [(each["scale"], each["seed"]) for each in execute.made] == [("0.5", "1")]
    assert "failed" not in {row["verdict"] for row in rows(folder, "runs.csv")}


@pytest.mark.local
def test_a_sweep_is_not_begun_twice_by_mistake(folder: Path) -> None:
    sweep(folder, Simulated())
    with pytest.raises(SpecError) as caught:
        sweep(folder, Simulated())
    assert caught.value.fields == ("name",)
    assert "--resume" in caught.value.faults[0].remedy
    with SweepRecord("rates"), pytest.raises(CannotRun):
        SweepRecord("rates")


@pytest.mark.pure
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"axes": {"sync.policy": ["mst", "nosuch"]}}, "sweep.yaml: axes: "),
        ({"axes": {"scale": [1], "trane.rounds": [1, 2]}}, "trane: "),
        ({"axes": {"topology": ["no.yaml"]}}, "no.yaml: file: "),
        ({"axes": {"run": {"one": {"scale": 1}}}}, "sweep.yaml: axes.run: "),
        ({"axes": {"wan_bytes_most": {"one": {"scale": 1}}}}, "sweep.yaml: axes.wan_bytes_most: "),
        ({"experiment": "no.yaml"}, "no.yaml: file: "),
        ({"seeds": ["one"]}, "sweep.yaml: seeds.0: "),
    ],
)
def test_bad_input_is_refused_before_the_first_run(changed: dict[str, Any], said: str, folder: Path) -> None:
    file = write(folder, **changed)
    ended = CliRunner().invoke(app, ["sweep", str(file)])
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert "write instead: " in ended.stderr
    assert not (folder / "runs").exists()


@pytest.mark.pure
def test_what_the_experiment_has_wrong_is_not_the_sweep_s_fault(folder: Path) -> None:
    experiments.write(folder, train={"model": "synthetic", "rounds": 8})
    ended = CliRunner().invoke(app, ["sweep", str(folder / "sweep.yaml")])
    assert ended.exit_code == 2
    assert f"{folder}/experiment.yaml: train.parameters: " in ended.stderr
    assert "axes" not in ended.stderr


@pytest.mark.local
def test_overrides_hold_at_all_points(folder: Path) -> None:
    write(folder, seeds=[1])
    sweep(folder, execute := Simulated(), overrides={"train.rounds": "5"})
    assert execute.made == [{"train.rounds": "5", "scale": scale, "seed": "1"} for scale in ("1", "0.5")]
    sweep(folder, again := Simulated(), resume=True, overrides={"train.rounds": "5"})
    assert again.made == [], "runs with the same overrides are complete"
    sweep(folder, other := Simulated(), resume=True)
    assert len(other.made) == 2, "runs without them are not"


@pytest.mark.pure
@pytest.mark.usefixtures("registry")
def test_a_policy_s_file_lies_from_the_sweep_s_folder_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := tmp_path / "sweeps").mkdir()
    experiments.write(tmp_path)
    new_policy("mine", place)
    file = write(place, experiment="../experiment.yaml", axes={"sync.policy": ["./mine.py"]}, seeds=[1])
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    (run,) = planned_sweep(Sweep.load(file))
    assert run.point.labels == {"sync.policy": "./mine.py"}
    assert run.overrides == {"sync.policy": str(place / "mine.py"), "seed": "1"}


@pytest.mark.local
def test_an_axis_may_set_a_part_of_what_an_override_sets(folder: Path) -> None:
    write(folder, seeds=[1], axes={"train.rounds": [5, 6]})
    sweep(folder, execute := Simulated(), overrides={"train": "{model: synthetic, parameters: 150000}"})
    assert [each["train.rounds"] for each in execute.made] == ["5", "6"]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "scale=2"), "sweep.yaml: axes.scale: the axis sets scale, as --set scale does"),
        (("--set", "scale=2", "--set", "seed=3"), "sweep.yaml: seeds: the sweep sets the seed, as --set seed does"),
        (("--set", "sync.options.roots=2"), "axes.plan: the axis sets sync.options, as --set sync.options.roots does"),
        (("--set", "train.rounds=none"), "experiment.yaml: train.rounds: "),
        (("--set", "trane.rounds=3"), "experiment.yaml: trane: "),
        (("--set", "train.rounds"), "--set train.rounds: is not KEY=VALUE"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_overrides_are_checked_before_the_first_run(
    words: tuple[str, ...], said: str, more: tuple[str, ...], folder: Path
) -> None:
    axes = {"scale": [1, 0.5], "plan": {"one": {"sync.options": {"roots": 1}, "sync.policy": "netstorm"}}}
    file = write(folder, axes=axes)
    ended = CliRunner().invoke(app, ["sweep", str(file), *words, *more])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in " ".join(ended.stderr.split())
    assert "write instead: " in ended.stderr
    assert not (folder / "runs").exists()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `testbed sweep` simulate its runs, which show their progress as others do."""

    def made(file: Path, changes: Mapping[str, str], strict: bool, publish: Any, display: Display) -> Executed:
        return simulate(file, changes, False, lambda run: run, display)

    monkeypatch.setattr("testbed.run.execute.execute", made)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.local
@pytest.mark.usefixtures("simulated")
def test_json_is_the_outcome_and_all_that_is_printed(folder: Path) -> None:
    words = ["sweep", str(folder / "sweep.yaml"), "--json"]
    ended = CliRunner().invoke(app, [*words, "--set", "train.rounds=4"])
    assert ended.exit_code == 0, ended.stderr
    assert "4 of 4: 0.5, seed 2; about " in ended.stderr
    outcome = json.loads(ended.stdout)
    assert (outcome["sweep"], outcome["directory"]) == ("rates", "runs/sweeps/rates")
    assert [point["axes"] for point in outcome["points"]] == [{"scale": "1"}, {"scale": "0.5"}]
    for point, row in zip(outcome["points"], rows(folder, "points.csv"), strict=True):
        assert point["wan_bytes"] == float(row["wan_bytes"])
        assert point["verdicts"] == ["simulated"] * 2
        assert len(point["spread"]["wan_bytes"]) == 2
        for run in point["runs"]:
            assert json.loads((folder / run / "manifest.json").read_text())["spec"]["train"]["rounds"] == 4
    again = CliRunner().invoke(app, [*words, "--set", "train.rounds=4", "--resume"])
    assert (again.exit_code, json.loads(again.stdout)) == (0, outcome)


@pytest.mark.local
@pytest.mark.usefixtures("simulated")
def test_json_of_a_sweep_that_fails_is_whole_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RunFailed("the members lost each other")

    monkeypatch.setattr("testbed.simulation.simulate.train", fails)
    ended = CliRunner().invoke(app, ["sweep", str(folder / "sweep.yaml"), "--json"])
    assert ended.exit_code == 1
    assert [point["verdicts"] for point in json.loads(ended.stdout)["points"]] == [["failed"] * 2] * 2


@pytest.mark.local
@pytest.mark.parametrize(
    ("words", "asked"),
    [((), None), (("--open",), ApiPort(0, shown=True)), (("--port", "8080"), ApiPort(8080))],
)
@pytest.mark.parametrize("verb", [("sweep", "sweep.yaml"), ("compare", "experiment.yaml", "--policies", "mst")])
def test_the_page_of_the_run_under_way_can_be_had(
    verb: tuple[str, ...], words: tuple[str, ...], asked: ApiPort | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[ApiPort | None] = []

    def made(file: Path, changes: Mapping[str, str], strict: bool, publish: Any, display: Display) -> Executed:
        ports.append(display.api_port)
        return Executed(False, "suspect", folder / "runs" / "none")

    monkeypatch.setattr("testbed.run.execute.execute", made)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert CliRunner().invoke(app, [*verb, *words]).exit_code == 1
    assert ports and set(ports) == {asked}


@pytest.mark.pure
@pytest.mark.parametrize("words", [("--open",), ("--port", "0")])
@pytest.mark.parametrize("verb", [("sweep", "sweep.yaml"), ("compare", "experiment.yaml", "--policies", "mst")])
def test_runs_on_other_machines_have_no_page(verb: tuple[str, ...], words: tuple[str, ...], folder: Path) -> None:
    ended = CliRunner().invoke(app, [*verb, "--on", "ray", *words])
    assert ended.exit_code == 2
    assert "--on" in ended.stderr and "`testbed view RUN`" in ended.stderr


@pytest.mark.local
def test_the_documented_sweep_is_one(folder: Path) -> None:
    """The sweep of docs/scale.md, word for word, of an experiment that is shorter than the one it names."""
    examples = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs/scale.md").read_text(), re.DOTALL)
    (example,) = [example for example in examples if "\naxes:" in example]
    (folder / "sweep.yaml").write_text(example)
    experiment = yaml.safe_load((REPOSITORY / "experiments/smoke.yaml").read_text())
    experiment["train"]["rounds"] = 4
    (folder / "experiments").mkdir()
    (folder / "experiments/smoke.yaml").write_text(yaml.safe_dump(experiment))
    (folder / "topologies").symlink_to(REPOSITORY / "topologies")
    compared, _ = sweep(folder, Simulated())
    assert compared.finished
    labels = [tuple(point.labels.values()) for point in compared.points]
    assert labels == [("1", "mst"), ("1", "netstorm-1"), ("0.5", "mst"), ("0.5", "netstorm-1")]
    for point in compared.points:
        assert len(compared.figures(point)["spread"]["wan_bytes"]) == 2
    told = (folder / "runs/sweeps/rates-and-policies/points.csv").read_text()
    assert told.startswith("scale,plan,runs,trusted,")


@pytest.mark.local
def test_a_terminal_shows_how_far_each_point_is(folder: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=120)
    make_sweep(
        Sweep.load(folder / "sweep.yaml"),
        False,
        partial(one_after_another, Simulated()),
        lambda compared: SweepProgress(console, compared),
    )
    assert "1 running" in said.getvalue()
    assert "1 of 2" in said.getvalue()
    assert "3 of 4 runs, about " in said.getvalue()


@pytest.mark.local
def test_a_terminal_that_is_gone_hides_no_interrupt_of_a_sweep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = ProgressConsole(file=(terminal := Terminal()), force_terminal=True)

    def make(_: Path, runs: Sequence[PlannedRun], __: Watcher) -> Iterator[tuple[PlannedRun, Executed]]:
        terminal.closed_now = bool(runs)
        raise Interrupted("SIGHUP")
        yield

    with pytest.raises(Interrupted):
        make_sweep(Sweep.load(folder / "sweep.yaml"), False, make, lambda compared: SweepProgress(console, compared))


@pytest.mark.system
def test_a_sweep_is_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    """Two runs of six rounds each. The second is interrupted."""
    for name, value in (("pair", PAIR), ("topology", TOPOLOGY)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(value))
    (tmp_path / "sweep.yaml").write_text(json.dumps(SWEEP | {"experiment": "pair.yaml", "seeds": [7]}))
    with Running(tmp_path, str(tmp_path / "sweep.yaml"), verb="sweep") as first:
        first.wait_for("2 of 2: 0.5, seed 7; about ")
        until(lambda: first.containers != [])
        os.kill(first.process.pid, signal.SIGINT)
        assert first.end() == 130, first.output
        assert first.left_behind == NOTHING
    done = json.loads((tmp_path / "runs/sweeps/rates/runs.jsonl").read_text())
    assert (done["axes"], done["finished"]) == ({"scale": "1"}, True)
    command = [sys.executable, "-m", "testbed", "sweep", "sweep.yaml", "--resume"]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 2 runs are already made\n2 of 2: 0.5, seed 7\n" in ended.stdout
    runs, points = rows(tmp_path, "runs.csv"), rows(tmp_path, "points.csv")
    assert runs[0]["run"] == done["run"]
    assert [row["scale"] for row in runs] == [point["scale"] for point in points] == ["1", "0.5"]
    for row in runs:
        assert float(row["wan_bytes"]) > 6 * 4 * 151_306  # six rounds of the model cross the WAN at least once each
        assert (tmp_path / "runs" / row["run"] / "report.html").exists()
        # A round begins at a member before it ends at another, so that a round's own time may be shorter than the link
        # needs for the model, which is half a second at 10 Mbit/s. The rounds' mean period may not.
        reports = map(json.loads, (tmp_path / "runs" / row["run"] / "rounds.jsonl").read_text().splitlines())
        ended_s = [report["finished_s"] for report in reports if report["member"] == "tokyo-w0"]
        assert (ended_s[-1] - ended_s[0]) / (len(ended_s) - 1) > 0.95 * 4 * 151_306 * 8 / (20e6 * float(row["scale"]))


@pytest.mark.local
def test_a_record_of_no_run_is_removed(tmp_path: Path) -> None:
    with pytest.raises(CannotRun), SweepRecord("rates", tmp_path / "runs"):
        raise CannotRun("the disk is full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.local
def test_a_record_that_was_there_stays(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "sweeps" / "rates").mkdir(parents=True, exist_ok=True)
        with SweepRecord("rates", tmp_path) as record:
            assert record.complete() == {}
        assert list(record.folder.iterdir()) == []  # a row makes the file


@pytest.mark.local
def test_a_record_that_takes_no_rows_is_refused_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweeps" / "rates").mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(CannotRun):
        SweepRecord("rates", tmp_path)


@pytest.mark.local
def test_no_column_of_the_tables_can_be_an_axis(folder: Path) -> None:
    write(folder, seeds=[1], axes={"scale": [1]})
    runs = planned_sweep(Sweep.load(folder / "sweep.yaml"))
    made = Comparison(runs, {run.key: Executed(False, "suspect", folder) for run in runs})
    (row,) = _run_rows(made)
    assert {*row, *_point_row(made, runs[0].point)} == {*COLUMNS, "scale"}


@pytest.mark.local
@pytest.mark.parametrize("rows", [0, 1])
def test_a_record_that_is_removed_ends_the_sweep_and_hides_no_interrupt(rows: int, folder: Path) -> None:
    run = planned_sweep(Sweep.load(folder / "sweep.yaml"))[0]
    done = Executed(True, "trusted", Path("runs/x"))
    with pytest.raises(RunFailed, match="gone"), SweepRecord("rates") as record:
        for _ in range(rows):
            record.add(run, done)
        shutil.rmtree(record.folder)
        record.add(run, done)
    with pytest.raises(Interrupted), SweepRecord("rates") as record:
        shutil.rmtree(record.folder)
        raise Interrupted("SIGINT")
