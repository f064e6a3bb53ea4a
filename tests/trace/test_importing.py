"""`testbed trace import`: files of each form become CSV that replays, or are refused with nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, app
from testbed.trace.read import read_trace
from testbed.trace.text import read_text
from tests.trace.forms.captures import BEGIN_NS, blocks, classic, frame, ip
from tests.trace.forms.test_cellular import DRIVE
from tests.trace.forms.test_pensieve import RIDE
from tests.trace.forms.test_ping import LINUX
from tests.trace.forms.test_rtt_csv import STARLINK

pytestmark = pytest.mark.pure

IPERF3 = """{"intervals": [
{"sum": {"start": 0, "end": 1, "bytes": 1448000}}, {"sum": {"start": 1, "end": 2, "bytes": 724000}}]}"""
PACKETS = [(BEGIN_NS + ms * 10**6, 1514, frame(ip("10.0.0.1", "10.0.0.2"))) for ms in range(1001)]


def imported(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", "import", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"ride": RIDE, "drive.log": DRIVE, "star": STARLINK, "ping.txt": LINUX, "a.json": IPERF3}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a.pcap").write_bytes(classic(PACKETS))
    (tmp_path / "b.pcapng").write_bytes(blocks(PACKETS))
    return tmp_path


@pytest.mark.parametrize(
    ("form", "source", "targets", "said"),
    [
        ("pensieve", "ride", ["ride.csv"], "# each rate holds for the time that ended at its line"),
        ("5g-csv", "drive.log", ["drive-down.csv", "drive-up.csv"], "# delay: half of PINGAVG"),
        ("rtt-csv", "star", ["star.csv"], "# 3 round trips, 1 lost, in windows of 1 s"),
        ("ping", "ping.txt", ["ping.csv"], "# 6 round trips, 4 lost, in windows of 2 s"),
        ("iperf3", "a.json", ["a.csv"], "# in steps of 1 s"),
        ("pcap", "a.pcap", ["a.csv"], "# largest flows, of all bytes: 10.0.0.1:443->10.0.0.2:51000 100%"),
        ("pcap", "b.pcapng", ["b.csv"], "# 1001 packets of all flows, in steps of 0.1 s"),
    ],
)
def test_each_form_becomes_a_trace(form: str, source: str, targets: list[str], said: str, folder: Path) -> None:
    result = imported(form, source)
    assert result.exit_code == 0, result.output
    for target in targets:
        text = (folder / target).read_text()
        assert text.startswith(f"# from {source} ({form})\n")
        assert said in text
        assert read_trace(folder / target).trace.rows[0].time_s == 0
        assert f"{target}: " in result.stdout


@pytest.mark.parametrize("source", ["stra\udcdfe.log", "a\nb.log"], ids=["latin-1", "lines"])
def test_a_source_may_have_any_name(source: str, folder: Path) -> None:
    (folder / "ride").rename(folder / source)
    result = imported("pensieve", source)
    assert result.exit_code == 0, result.output
    assert read_trace((folder / source).with_suffix(".csv")).trace.rows[0].time_s == 0
    assert len(result.stdout.splitlines()) == 1 + read_text((folder / source).with_suffix(".csv")).count("# ")


def test_several_files_go_into_a_folder_and_options_to_each(folder: Path) -> None:
    (folder / "made").mkdir()
    result = imported("pcap", "a.pcap", "b.pcapng", "--out", "made", "--step", "500ms", "--flow", "*:443->*")
    assert result.exit_code == 0, result.output
    assert [len(read_trace(file).trace.rows) for file in sorted((folder / "made").iterdir())] == [2, 2]
    assert imported("ping", "ping.txt", "--step", "400ms").exit_code == 0
    assert [row.loss for row in read_trace(folder / "ping.csv").trace.rows][1:] == [pytest.approx(0.292893), 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pensieve", "none.txt"], "none.txt: "),
        (["pensieve", "drive.log"], "drive.log: line 1: "),
        (["5g-csv", "star"], "star: line 1: "),
        (["rtt-csv", "drive.log"], "drive.log: line 1: "),
        (["ping", "ride"], "ride: "),
        (["iperf3", "ride"], "ride: line 1: "),
        (["pcap", "ride"], "ride: "),
        (["pcap", "none.pcap"], "none.pcap: "),
        (["pcap", "a.pcap", "--flow", "x"], "'x'"),
        (
            ["pcap", "a.pcap", "--flow", "10.9.9.9->*"],
            "10.0.0.1",
        ),
        (["pcap", "a.pcap", "--step", "1"], "--step"),
        (["pcap", "a.pcap", "a.pcap"], "a.csv: "),
        (["pensieve", "ride", "ride.csv"], "ride.csv: "),
        (["pensieve", "ride", "--out", "nowhere"], "nowhere: "),
    ],
)
def test_what_cannot_be_imported_is_said_and_nothing_written(words: list[str], said: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = imported(*words)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr
    assert sorted(folder.iterdir()) == before


def test_a_source_is_not_written_over(folder: Path) -> None:
    (folder / "star").rename(folder / "star.csv")
    result = imported("rtt-csv", "star.csv")
    assert result.exit_code == BAD_INPUT
    assert "star.csv: " in result.stderr and "name another" in result.stderr
    assert (folder / "star.csv").read_text() == STARLINK
