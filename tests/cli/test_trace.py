"""`testbed trace`: what its verbs print and write, and what wrong files get."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, app
from testbed.trace.generate import Markov, OrnsteinUhlenbeck
from testbed.trace.read import read_trace
from tests.report.runs import build_run

pytestmark = pytest.mark.pure

CSV = "time_s,rate_mbps,delay_ms\n0,12.112,50\n1,6.056,20\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "a.down").write_text("".join(f"{ms}\n" for ms in range(0, 2001, 2)))
    return tmp_path


def trace(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)])


def test_check_says_what_a_trace_amounts_to(folder: Path) -> None:
    result = trace("check", "a.csv")
    assert result.exit_code == 0
    assert "a.csv: csv, 2 rows, 2 s, then loop" in result.stdout
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["rate_mbps", "9.084", "6.056", "12.112"],
        ["delay_ms", "35", "20", "50"],
    ]


def test_a_trace_of_one_row_is_counted_in_the_singular(folder: Path) -> None:
    (folder / "one.csv").write_text("time_s,rate_mbps\n0,10\n")
    assert "one.csv: csv, 1 row, 1 s" in trace("check", "one.csv").stdout


def test_check_says_the_error_of_what_is_resampled(folder: Path) -> None:
    result = trace("check", "a.down", "--step", "500ms")
    assert "a.down: mahimahi, 4 rows, 2 s" in result.stdout
    assert "a step of 0.5 s: error of the bytes delivered 0.00% a step" in result.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time_s,rate_mbps\n0,1\n2,2\n1,3\n", "bad.csv: line 4: "),
        ("time_s,rate_mbps\n0,-3\n", "bad.csv: line 2: rate_mbps is -3"),
    ],
)
def test_check_names_the_fault(text: str, said: str, folder: Path) -> None:
    (folder / "bad.csv").write_text(text)
    result = trace("check", "bad.csv")
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr
    assert result.stdout == ""


def test_show_draws_each_column_and_a_picture(folder: Path) -> None:
    result = trace("show", "a.csv", "--png", "a.png")
    assert result.exit_code == 0, result.output
    assert "rate_mbps └" in result.stdout
    assert "delay_ms └" in result.stdout
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_named(folder: Path) -> None:
    result = trace("show", "a.csv", "--png", "nowhere/a.png")
    assert result.exit_code == BAD_INPUT
    assert "nowhere/a.png" in result.stderr


def test_packets_become_rows_and_rows_packets(folder: Path) -> None:
    assert trace("convert", "a.down", "b.csv", "--step", "1s").exit_code == 0
    made = read_trace(folder / "b.csv").trace
    assert [row.time_s for row in made.rows] == [0, 1]
    assert made.rows[0].rate_bps == pytest.approx(500 * 8 * 1514)
    assert (folder / "b.csv").read_text().startswith("# from a.down (mahimahi)\n# resampled at a step of 1 s: error")
    result = trace("convert", "a.csv", "c.down")
    assert "1500 packets; error of the bytes delivered: 0.1" in result.stdout
    assert "only the rate is kept" in result.stdout
    back = read_trace(folder / "c.down", step_s=1).trace
    assert [row.rate_bps for row in back.rows] == pytest.approx([12.112e6, 6.056e6], rel=0.002)


def test_packets_of_more_than_a_day_have_their_error_in_longer_windows(folder: Path) -> None:
    (folder / "long.csv").write_text("time_s,rate_mbps\n0,0.001\n50050,0.002\n")
    result = trace("convert", "long.csv", "long.down")
    assert result.exit_code == 0, result.output
    assert "in 0.2 s windows" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.csv"], "SOURCE TARGET"),
        (["a.csv", "b.csv", "c.csv"], "SOURCE TARGET"),
        (["a.csv", "b.json"], "b.json: "),
        (["a.csv", "b.down.gz"], "write b.down,"),
        (["a.csv", "b.dwon"], "write one of .csv, .up, .down and .mahimahi"),
        (["a.csv", "b"], "write one of .csv"),
        (["a.csv", "b.down", "--step", "1s"], "a.csv: "),
        (["a.csv", "--run", "x"], "--run needs --link"),
        (["a.csv", "--link", "a->b"], "--link needs --run"),
        (["a.csv", "--run", "x", "--link", "a->b", "--step", "1s"], "--run takes no --step"),
        (["a.csv", "--run", "x", "--link", "a->b"], "x: "),
        (["a.csv", "nowhere/b.csv"], "nowhere/b.csv"),
        (["a.csv", "b.csv", "--step", "1"], "--step"),
    ],
)
def test_what_cannot_be_converted_is_said(words: list[str], said: str, folder: Path) -> None:
    result = trace("convert", *words)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("trace convert a.csv made.down", "made.down"),
        ("trace generate uniform --low 2mbit --high 9mbit --seed 1 made.csv", "made.csv"),
        ("trace import pensieve ride", "ride.csv"),
        ("topology import graph.csv --out made.yaml", "made.yaml"),
    ],
)
def test_a_file_that_is_there_is_not_written_over(line: str, target: str, folder: Path) -> None:
    (folder / "ride").write_text("0 1.5\n1 2.5\n")
    (folder / "graph.csv").write_text(",a,b\na,,10\nb,12,\n")
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    (folder / target).write_text("mine")
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == BAD_INPUT
    assert f"{target}: " in result.stderr and "name another" in result.stderr
    assert (folder / target).read_text() == "mine"


def test_a_run_s_measurement_becomes_a_trace(folder: Path) -> None:
    build_run(folder / "run")
    result = trace("convert", "--run", "run", "--link", "toronto->washington", "measured.csv")
    assert result.exit_code == 0, result.output
    assert (folder / "measured.csv").read_text().startswith("# throughput of toronto->washington while backlogged in")
    made = read_trace(folder / "measured.csv").trace
    assert len(made.rows) > 10
    assert all(row.rate_bps is not None and 1e6 < row.rate_bps < 100e6 for row in made.rows)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["uniform", "--low", "20mbit", "--high", "155mbit"], "UniformRedraw(low_bps=20000000.0"),
        (["walk", "--mean", "20mbit"], str(OrnsteinUhlenbeck(20e6, 0.1, 20.0, 1.0, 180.0, 7))),
        (["markov", "--state", "5mbit", "--state", "20mbit", "--dwell", "10s"], "Markov(rates_bps=(5000000.0, 2"),
        (
            ["markov", "--state", "5mbit", "--state", "20mbit", "--next", "0.9,0.1", "--next", "1,0"],
            str(Markov((5e6, 20e6), ((0.9, 0.1), (1, 0)), 1.0, 180.0, 7)).replace("(1, 0)", "(1.0, 0.0)"),
        ),
        (["diurnal", "--mean", "20mbit", "--swing", "0.3"], "Diurnal(mean_bps=20000000.0, swing=0.3"),
        (["outages", "--rate", "20mbit", "--down", "2s"], "Outages(rate_bps=20000000.0, up_s=60.0, down_s=2.0"),
    ],
)
def test_each_generator_names_itself_and_its_seed(words: list[str], named: str, folder: Path) -> None:
    result = trace("generate", *words, "--seed", "7", "made.csv")
    assert result.exit_code == 0, result.output
    first = (folder / "made.csv").read_text().splitlines()[0]
    assert first.startswith(f"# {named}")
    assert first.endswith("seed=7)")
    assert trace("check", "made.csv").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["walk", "--mean", "20mbit", "--seed", "1", "a.down"], ".csv"),
        (["walk", "--mean", "20mbit", "--seed", "1", "b.csv.xz"], "write b.csv,"),
        (["walk", "--mean", "20", "--seed", "1", "b.csv"], "--mean"),
        (["walk", "--mean", "20mbit", "b.csv"], "--seed"),
        (["walk", "--mean", "20mbit", "--seed", "1", "--step", "0s", "b.csv"], "step is 0"),
        (["markov", "--state", "1mbit", "--seed", "1", "b.csv"], "--dwell 10s"),
        (["markov", "--state", "1mbit", "--next", "x", "--seed", "1", "b.csv"], "--next x: "),
        (["markov", "--state", "1mbit", "--next", "0.5", "--seed", "1", "b.csv"], "row 0 "),
        (["walk", "--mean", "20mbit", "--spread", "nan", "--seed", "1", "b.csv"], "--spread"),
        (["walk", "--mean", "90gbit", "--spread", "1", "--seed", "1", "b.csv"], "write 1000 to 1e+11"),
        (["diurnal", "--mean", "20mbit", "--noise", "nan", "--seed", "1", "b.csv"], "--noise"),
    ],
)
def test_what_cannot_be_generated_is_said(words: list[str], said: str, folder: Path) -> None:
    result = trace("generate", *words)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr
    assert not (folder / "b.csv").exists()
