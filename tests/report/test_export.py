"""Exports of runs: the written files, their content, and the errors of forms that cannot be written."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, CANNOT, app
from testbed.report import frames
from testbed.report.export import FIGURE_FORMS
from testbed.report.figures.canvas import FigureForm
from testbed.report.figures.training import draw_training
from testbed.report.record import RunRecord
from testbed.telemetry.tensorboard import read_figures
from tests.report.runs import build_run

pytestmark = pytest.mark.pure

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "made-up", rounds=12)


def exported(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def test_a_run_is_written_as_tables_and_the_files_are_told(run: Path, tmp_path: Path) -> None:
    done = exported(run, "--out", tmp_path / "a" / "b", "--form", "csv")
    assert done.exit_code == 0, done.output
    files = [Path(line) for line in done.stdout.splitlines()]
    assert {*files} == {*(tmp_path / "a" / "b").iterdir()}
    assert {file.stem for file in files} == {*frames.TABLES}
    record = RunRecord.read(run)
    assert [float(row["seconds"]) for row in rows(tmp_path / "a/b/rounds.csv")] == [r.seconds for r in record.rounds]
    assert len(rows(tmp_path / "a/b/reports.csv")) == len(record.reports)


@pytest.mark.parametrize("form", FIGURE_FORMS)
def test_a_figure_is_a_file_of_its_form_and_the_same_each_time(run: Path, form: FigureForm) -> None:
    drawing = draw_training(RunRecord.read(run))
    assert drawing
    one, other = io.BytesIO(), io.BytesIO()
    drawing.write(one, form)
    drawing.write(other, form)
    assert one.getvalue() == other.getvalue()
    if form == "svg":
        assert ElementTree.fromstring(one.getvalue()).tag.endswith("svg")
    else:
        assert one.getvalue().startswith(MAGIC[form])
    assert b"/Type3" not in one.getvalue(), "conferences refuse such fonts"


def test_several_runs_have_the_figures_that_set_them_side_by_side_and_a_column_that_tells_them_apart(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = build_run(tmp_path / "other", rounds=9, policy="netstorm")
    assert exported(run, other).exit_code == 0
    written = {file.name for file in Path("runs/comparison").iterdir()}
    assert {"spread.svg", "loss.svg", "rounds.csv"} <= written
    assert "network.svg" not in written
    found = rows(Path("runs/comparison/rounds.csv"))
    assert Counter(row["run"] for row in found) == {"mst": 12, "netstorm": 9}
    one, two = rows(Path("runs/comparison/comparison.csv"))
    assert (one["run"], two["run"], one["verdict"]) == ("mst", "netstorm", "trusted")
    assert one["loss"] == two["loss"], "the loss that both reached"
    for row, record in ((one, RunRecord.read(run)), (two, RunRecord.read(other))):
        assert float(row["wall_seconds"]) == record.summary["training"]["wall_seconds"]
        assert 0 < float(row["seconds_to_loss"]) <= record.end_s


def test_curves_are_written_for_tensorboard_by_round(run: Path, tmp_path: Path) -> None:
    done = exported(run, "--form", "tensorboard", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    [file] = (tmp_path / "tensorboard").rglob("*tfevents*")
    found = list(read_figures(file))
    record = RunRecord.read(run)
    losses = [figures.values["loss"] for figures in found if "loss" in figures.values]
    assert losses == pytest.approx(record.metric("loss")[1])
    steps = [(figures.step, figures.at_s) for figures in found if "round_seconds" in figures.values]
    assert steps == [(one.number, one.finished_s) for one in record.rounds]


def test_rounds_and_swaps_are_spans_of_one_trace(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=60)
    done = exported(run, "--form", "otlp", "--out", tmp_path / "x")
    assert done.exit_code == 0, done.output
    [resource] = json.loads(Path(done.stdout.strip()).read_text())["resourceSpans"]
    root, *others = resource["scopeSpans"][0]["spans"]
    record = RunRecord.read(run)
    swaps = [swap for swap in record.summary["swaps"] if swap["active_s"] is not None]
    assert len(others) == len(record.rounds) + len(swaps) > len(record.rounds)
    assert {span["parentSpanId"] for span in others} == {root["spanId"]}
    assert len({span["spanId"] for span in (root, *others)}) == 1 + len(others)
    assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in (root, *others))
    [first] = [span for span in others if span["name"] == f"round {record.rounds[0].number}"]
    assert int(first["endTimeUnixNano"]) == pytest.approx(record.rounds[0].finished_s * 1e9, abs=1e3)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a file, for links to lead to."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "rounds.csv").write_text("kept")
    return folder


def test_links_in_a_run_s_own_folder_are_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    run = build_run(tmp_path / "run", rounds=9)
    (run / "export").mkdir()
    (run / "export/rounds.csv").symlink_to(elsewhere / "rounds.csv")
    (run / "export/tensorboard").symlink_to(elsewhere)
    done = exported(run, "--form", "csv,tensorboard")
    assert done.exit_code == 0, done.output
    assert {file.name: file.read_text() for file in elsewhere.iterdir()} == {"rounds.csv": "kept"}
    assert len(rows(run / "export/rounds.csv")) == 9


def test_a_run_s_own_folder_that_is_a_link_is_refused(tmp_path: Path, elsewhere: Path) -> None:
    run = build_run(tmp_path / "run", rounds=9)
    (run / "export").symlink_to(elsewhere)
    done = exported(run)
    assert done.exit_code == BAD_INPUT
    assert "--out" in done.stderr
    assert {file.name: file.read_text() for file in elsewhere.iterdir()} == {"rounds.csv": "kept"}


def test_an_id_that_is_a_path_leads_to_no_other_folder(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=9)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "id": "../../../theirs"}))
    done = exported(run, "--form", "tensorboard,otlp", "--out", tmp_path / "a/b")
    assert done.exit_code == 0, done.output
    assert all(Path(line).resolve().is_relative_to(tmp_path / "a/b") for line in done.stdout.splitlines())


def test_an_unknown_form_and_a_folder_that_is_no_run_are_bad_input(run: Path, tmp_path: Path) -> None:
    wrong = exported(run, "--form", "svg,xlsx", "--out", tmp_path / "x")
    assert wrong.exit_code == BAD_INPUT
    assert "png, svg, pdf, csv, parquet, tensorboard, otlp" in wrong.stderr
    assert exported(run, tmp_path, "--out", tmp_path / "x").exit_code == BAD_INPUT
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("form", "package"), [("svg,csv", "pandas"), ("svg,parquet", "pyarrow")])
def test_what_is_missing_is_said_before_anything_is_written(
    form: str, package: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = exported(run, "--form", form, "--out", tmp_path / "x")
    assert done.exit_code == CANNOT
    assert f"{package} is missing" in done.stderr
    assert "pip install" in done.stderr
    assert not (tmp_path / "x").exists()
