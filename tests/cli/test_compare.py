"""The table that `testbed compare` ends with, and the comparison that the tutorial shows."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli import BAD_INPUT, app, compare, tables
from testbed.cli.console import INTERRUPTED
from testbed.emulation.interrupt import Interrupted
from testbed.errors import FAILED, NOT_HERE
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import Comparison
from testbed.run.sweep.planned_run import PlannedRun, Point
from tests.report.runs import build_run

pytestmark = pytest.mark.pure

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two policies with two seeds, the one of which takes twice as long for a round."""
    folder = tmp_path_factory.mktemp("compared")
    planned, made = [], {}
    for policy, slower in (("star:placement=worst", 2.0), ("mst", 1.0)):
        point = Point({"policy": policy}, {}, policy)
        for seed in (1, 2):
            run = PlannedRun(point, seed)
            directory = build_run(folder / f"{policy.partition(':')[0]}-{seed}", 40, seed, policy, slower)
            planned.append(run)
            made[run.key] = Executed(True, "trusted", directory)
    return Comparison(planned, made)


def printed(compared: Comparison, monkeypatch: pytest.MonkeyPatch, **console: object) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(tables, "console", Console(file=out, highlight=False, soft_wrap=True, **console))  # type: ignore[arg-type]
    tables.print_comparison(compared)
    return out.getvalue().splitlines()


def test_headings_name_units_and_a_pipe_folds_nothing(compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    heading, star, mst, meaning = printed(compared, monkeypatch, width=40)
    columns = re.split(r" {2,}", heading.strip())
    assert columns[:4] == ["policy", "round, s", "training, s", f"to loss {compared.loss:.3g}, s"]
    assert columns[4:] == [
        *("test accuracy, %", "over the lower bound, ×", "over the bound, ×", "over the WAN, MB", "verdicts"),
    ]
    assert star.startswith("star:placement=worst") and star.rstrip().endswith("2 trusted")
    assert "last worker's entry" in meaning
    cells = [[float(re.match(r"[\d.]+", cell)[0]) for cell in re.split(r" {2,}", row)[1:4]] for row in (star, mst)]  # type: ignore[index]
    assert all(slow > fast for slow, fast in zip(*cells, strict=True)), "rounds, the whole, and to the loss"


def test_the_name_of_an_axis_and_its_labels_are_printed_as_they_are(
    compared: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PlannedRun(Point({"delay [ms]": "[/]"}, {}, "one"), 1)
    only = Comparison([run], {run.key: next(iter(compared.made.values()))})
    heading, row, _ = printed(only, monkeypatch, width=40)
    assert heading.startswith("delay [ms] ") and row.startswith("[/] ")


def test_a_run_that_was_removed_meanwhile_costs_the_others_nothing(compared: Comparison, tmp_path: Path) -> None:
    star, mst = compared.planned[0], compared.planned[-1]
    gone = replace(compared.made[star.key], directory=tmp_path / "gone")
    left = Comparison(compared.planned, {**compared.made, star.key: gone})
    found = left.outcome(star.point)
    assert len(found["spread"]["seconds_per_round_p50"]) == 1 and found["verdicts"] == ["trusted", "trusted"]
    assert len(left.outcome(mst.point)["spread"]["wan_bytes"]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policies", "mst", "--seeds", "1,two"], "--seeds 1,two: "),
        (["--policies", "mst,netstorm:roots"], "--policies: 'netstorm:roots': 'roots' is not an option"),
    ],
)
def test_the_wrong_one_of_policies_and_seeds_is_named(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["compare", "experiments/smoke.yaml", *options])
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr and "write instead: " in result.stderr
    assert "invalid literal" not in result.stderr


def test_the_json_has_the_loss_and_when_each_run_came_to_it(compared: Comparison) -> None:
    star, mst = (json.loads(json.dumps(compared.outcome(point))) for point in compared.points)
    assert star["loss"] == mst["loss"] == compared.loss
    assert mst["seconds_to_loss"] < star["seconds_to_loss"] <= star["wall_seconds"]
    assert len(star["spread"]["seconds_to_loss"]) == 2
    assert {"seconds_per_round_p50", "ratio_to_bound", "final_accuracy", "wan_bytes", "verdicts"} <= star.keys()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_page_that_cannot_be_written_hides_no_result(
    options: list[str], compared: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "comparison.html")

    made = [(run, compared.made[run.key]) for run in compared.planned]
    monkeypatch.setattr("testbed.report.page.write_comparison", full)
    monkeypatch.setattr("testbed.cli.sweep_progress.SweepProgress", lambda *_: nullcontext())
    monkeypatch.setattr("testbed.run.sweep.planned_run.planned_comparison", lambda *_: compared.planned)
    monkeypatch.setattr("testbed.cli.compare.need_root_for", lambda *_: None)
    monkeypatch.setattr("testbed.cli.compare._make", lambda *_: lambda *_: made)
    result = CliRunner().invoke(app, ["compare", "smoke", "--policies", "mst", *options])
    assert result.exit_code == FAILED
    assert "star:placement=worst" in result.stdout
    assert "comparison.html: " in result.stderr and NOT_HERE[errno.ENOSPC] in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_page_is_the_user_s_behind_sudo(compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "54321")
    page = compare._side_by_side(compared)
    assert page is not None and page.stat().st_uid == 12345


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize(
    ("on", "said"), [(None, "no run was under way"), ("ray", "the runs on the hosts were cancelled")]
)
def test_an_interrupt_says_what_was_ended(
    on: Literal["ray"] | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, compare._interruptible(on):
        raise Interrupted("SIGINT")
    assert ended.value.exit_code == INTERRUPTED
    assert f"interrupted (SIGINT): {said}" in capsys.readouterr().err


def test_the_tutorial_s_comparison_shows_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = re.search(r"compare experiments/mine.yaml --policies (\S+)", (DOCS / "tutorial.md").read_text())
    assert command
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "experiment", "mine"]).exit_code == 0
    seconds = []
    for policy in command[1].split(","):
        words = ("plan", "topologies/mine.yaml", "--policy", policy, "--model-bytes", "604000", "--json")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        seconds.append(json.loads(done.stdout)["simulated_seconds"])
    assert len(seconds) > 1
    for one, other in combinations(seconds, 2):
        assert max(one, other) > 1.2 * min(one, other), "seeds alone make rounds differ by less"
