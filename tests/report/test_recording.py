"""What the page plays of a run that is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.api.client import ApiClient, RequestRefused
from testbed.api.server import ApiServer
from testbed.report.errors import NotARun
from testbed.report.player import RecordedRun
from testbed.report.recording import recording_of
from tests.report.runs import DOWN_S, MEMBERS, PAIRS, UP_S, build_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.pure
def test_a_recording_says_what_was_when(run: Path) -> None:
    recording = recording_of(run)
    assert len(recording["rounds"]) == 160
    assert all(set(done["workers"]) == set(MEMBERS) for done in recording["rounds"])
    assert {f"{a}->{b}" for pair in PAIRS for a, b in (pair, pair[::-1])} <= recording["links"].keys()
    link = recording["links"]["toronto->tokyo"]
    cut = [at_s for at_s, up in zip(link["at_s"], link["up"], strict=True) if not up]
    assert cut and min(cut) == pytest.approx(DOWN_S, abs=1)
    back = next(at_s for at_s, up in zip(link["at_s"], link["up"], strict=True) if up and at_s > cut[0])
    assert back == pytest.approx(UP_S, abs=1)
    assert all(len(column) == len(link["at_s"]) for column in link.values())
    assert all(len(column) == len(recording["traffic_s"]) for column in recording["bytes"].values())
    ends = {end for link in recording["links"] for end in link.split("->")}
    assert set(recording["sites"]) == ends  # also without the topology's file
    assert recording["sites"]["madrid"]["workers"] == ["madrid-w0", "madrid-w1"]
    first, *others = recording["plans"].values()
    assert first["active_s"] == 0.0 and others and all(plan["swap"]["active_s"] > 0 for plan in others)
    assert recording["seconds"] >= recording["rounds"][-1]["finished_s"]
    assert recording["verdict"] == {"verdict": "trusted", "reasons": []}


@pytest.mark.local
def test_it_is_the_same_when_another_process_reads_a_part(run: Path) -> None:
    assert recording_of(run, forks=True) == recording_of(run)


@pytest.mark.pure
def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    before = recording_of(run)
    for name in ("links.jsonl", "rounds.jsonl", "traffic.jsonl", "events.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"at_s": 17900')
    (run / "summary.json").unlink()
    after = recording_of(run)
    assert after["verdict"]["verdict"] == "unfinished"
    assert {**after, "verdict": None, "plans": None} == {**before, "verdict": None, "plans": None}


@pytest.mark.pure
def test_a_run_that_ended_before_it_trained_is_shown(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    manifest = json.loads((run / "manifest.json").read_text())
    last = json.loads((run / "traffic.jsonl").read_text().splitlines()[-1])
    (run / "manifest.json").write_text(json.dumps(manifest | {"training_started_s": last["at_s"] + 1.5}))
    (run / "rounds.jsonl").write_text("")
    assert recording_of(run)["seconds"] == 0.0


@pytest.mark.pure
def test_what_is_no_run_has_no_recording(tmp_path: Path) -> None:
    with pytest.raises(NotARun) as caught:
        recording_of(tmp_path)
    assert (caught.value.rule, caught.value.file) == ("no-run", tmp_path)


@pytest.mark.local
def test_a_recording_is_asked_and_not_changed(run: Path, tmp_path: Path) -> None:
    with ApiServer(RecordedRun(run), tmp_path / "view.sock"):
        client = ApiClient(tmp_path / "view.sock", "the recording")
        assert client.status()["kind"] == "recording"
        with pytest.raises(RequestRefused):
            client.change_link("toronto->tokyo", {"up": False})
