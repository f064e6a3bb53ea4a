"""Recordings of finished runs, which the page plays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed.api.client import ApiClient, RequestRefused
from testbed.api.server import ApiServer
from testbed.report.figures.network import draw_network
from testbed.report.record import RunRecord
from testbed.report.recording import MOST, RecordedRun, _changes, recording_of
from testbed.report.run_files import NotARun
from testbed.spec.load import parse_yaml
from tests.report.runs import DOWN_S, DROP_S, MEMBERS, NETWORK_S, PAIRS, UP_S, ZERO_S, build_run, without_plans


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.local
def test_a_run_whose_path_is_no_text_can_be_played(run: Path) -> None:
    path = run.parent / os.fsdecode(b"r\xff")
    shutil.copytree(run, path)
    assert RecordedRun(path).status().file.endswith("/r?")


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


@pytest.mark.pure
def test_an_iteration_of_members_that_gossip_is_as_long_as_its_parts(tmp_path: Path) -> None:
    run = without_plans(build_run(tmp_path / "run", rounds=3))
    reports = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    spent = [done["workers"] for done in recording_of(run)["rounds"]]
    for its in reports:
        assert sum(spent[its["round"]][its["member"]]) == pytest.approx(its["finished_s"] - its["started_s"], abs=1e-3)


@pytest.mark.pure
def test_a_metric_is_unknown_in_a_round_in_which_a_member_s_value_was_not_finite(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    reports = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    newest = max(report["round"] for report in reports)
    diverged = next(report for report in reports if report["round"] == newest)
    diverged["metrics"]["loss"] = None
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(report)}\n" for report in reports))
    *earlier, last = [done["metrics"]["loss"] for done in recording_of(run)["rounds"]]
    assert last is None and None not in earlier


@pytest.mark.pure
def test_what_programs_printed_is_in_the_order_of_its_times(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    lines = [
        {"at_s": ZERO_S + at_s, "program": "tokyo-w0", "step": None, "values": {"loss": 3 - at_s}} for at_s in (2, 1)
    ]
    (run / "curves.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    curves = recording_of(run)["curves"]
    assert [(record["at_s"], record["values"]) for record in curves] == [(1.0, {"loss": 2}), (2.0, {"loss": 1})]


@pytest.mark.pure
def test_programs_that_print_in_turns_are_all_in_a_long_recording(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    printed = (("tokyo-w0", "loss"), ("tokyo-w0", "val_loss"), ("london-w0", "loss"), ("london-w0", "val_loss"))
    lines = [
        {"at_s": ZERO_S + step, "program": program, "step": step, "values": {name: 1.0}}
        for step in range(MOST)
        for program, name in printed
    ]
    (run / "curves.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    curves = recording_of(run)["curves"]
    assert len(curves) == MOST
    assert {(record["program"], *record["values"]) for record in curves} == set(printed)


TOPOLOGY = """
name: quickstart
sites:
  {toronto: {workers: 2}, washington: {workers: 1}, london: {workers: 1}, madrid: {workers: 2}, tokyo: {workers: 2}}
links:
  - {between: [washington, london], delay: 37.5ms, trace: {file: a.csv}}
  - {between: [toronto, washington], rate: 40mbit, delay: 9.5ms, backward: {trace: {file: b.csv}}}
  - {between: [london, madrid], rate: 40mbit, delay: 13.5ms}
  - {between: [toronto, tokyo], rate: 25mbit, delay: 81ms}
"""
OTHER = TOPOLOGY.replace("name: quickstart", "name: quickstart-uplink").replace("trace: {file: a.csv}", "rate: 30mbit")
OTHER += "traffic: [{link: madrid->london, on_off: {rate: 10%, busy: 1s, idle: 1s}}]\n"


def recording_with(run: Path, *events: dict[str, Any], **manifest: Any) -> dict[str, Any]:
    """Return the recording of a run with these events and manifest fields added."""
    file = run / "events.jsonl"
    lines = [
        *map(json.loads, file.read_text().splitlines()),
        *({**one, "at_s": ZERO_S + one["at_s"]} for one in events),
    ]
    lines.sort(key=lambda line: float(line["at_s"]))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(known | manifest))
    return recording_of(run)


@pytest.mark.pure
def test_a_link_changed_by_hand_is_so_in_the_recording_until_a_swap_of_networks_changes_it(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    values = {"rate_bps": 5e6, "delay_s": None, "jitter_s": None, "loss": None}
    change = {"kind": "change", "target": "london->madrid", "by": "hand"}
    summary = json.loads((run / "summary.json").read_text())
    network = next(swap for swap in summary["swaps"] if swap["kind"] == "network")
    network |= {"target": "quickstart-uplink", "changed": ["london->madrid"], "removed": []}
    (run / "summary.json").write_text(json.dumps(summary))
    recording = recording_with(run, {"at_s": 20.0, **change}, {"at_s": 50.0, **change, "changed": values})
    assert recording["changes"] == {
        "london->madrid": [
            {"at_s": pytest.approx(20.0), "changed": None},  # as earlier versions recorded it
            {"at_s": pytest.approx(50.0), "changed": values},
            {"at_s": pytest.approx(NETWORK_S), "changed": {}},
        ]
    }
    event = next(event for event in recording["events"] if event.get("changed"))
    assert event["by"] == "hand"


@pytest.mark.pure
def test_which_links_had_a_trace_or_traffic_is_what_the_files_say_and_unknown_without_them(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    assert [one["links"] for one in recording_of(run)["traced"]] == [None, None]
    spec = {"topology": "../topologies/quickstart.yaml", "train": {"rounds": 160}, "sync": {"policy": "mst"}}
    inputs = {
        "experiments/../topologies/quickstart.yaml": TOPOLOGY,
        "experiments/../topologies/other.yaml": OTHER,
    }
    first, second = recording_with(run, spec=spec, inputs=inputs)["traced"]
    assert first == {"at_s": 0.0, "links": ["washington->london", "london->washington", "washington->toronto"]}
    assert second == {"at_s": pytest.approx(NETWORK_S), "links": ["washington->toronto", "madrid->london"]}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("own", "file"),
    [("quickstart", "/x/topologies/quickstart.yaml"), ("./net.v2.yaml", "experiments/net.v2.yaml")],
)
def test_a_topology_may_be_named_as_a_preset_or_from_this_folder(tmp_path: Path, own: str, file: str) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    spec = {"topology": own, "train": {"rounds": 3}, "sync": {"policy": "mst"}}
    inputs = {file: TOPOLOGY, "experiments/other.yaml": OTHER}
    first, *_ = recording_with(run, spec=spec, inputs=inputs)["traced"]
    assert first["links"] == ["washington->london", "london->washington", "washington->toronto"]


@pytest.mark.pure
@pytest.mark.parametrize("begin", ["---", "# Who measured it.\n---", "lan: {rate: 1gbit}"])
def test_a_topology_s_file_may_begin_with_any_of_its_fields(tmp_path: Path, begin: str) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    spec = {"topology": "quickstart.yaml", "train": {"rounds": 3}, "sync": {"policy": "mst"}}
    first, *_ = recording_with(run, spec=spec, inputs={"quickstart.yaml": f"{begin}{TOPOLOGY}"})["traced"]
    assert first["links"] == ["washington->london", "london->washington", "washington->toronto"]


@pytest.mark.pure
@pytest.mark.parametrize(
    "other",
    [
        "# A policy.\nfor sites in ():\n    print(f'{sites}: none')\n",
        "# From two sites.\ntime_s,rate_mbps\n0,40\n# At noon.\n9,60\n",
        "# Nothing else is known of the sites.\n",
    ],
)
def test_an_experiment_s_files_that_are_no_topologies_are_passed_over(tmp_path: Path, other: str) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    spec = {"topology": "quickstart.yaml", "train": {"rounds": 3}, "sync": {"policy": "./mine.py"}}
    first, *_ = recording_with(run, spec=spec, inputs={"mine.py": other, "quickstart.yaml": TOPOLOGY})["traced"]
    assert first["links"] == ["washington->london", "london->washington", "washington->toronto"]


@pytest.mark.pure
def test_the_drop_in_a_trace_is_an_event_and_its_end_another(run: Path) -> None:
    found = [event for event in recording_of(run)["events"] if "after_bps" in event]
    ends = [(event["kind"], event["target"], event["at_s"]) for event in found]
    assert ("drop", "london-washington", pytest.approx(DROP_S, abs=1.5)) in ends
    drop = found[0]
    assert drop["before_bps"] / drop["after_bps"] == pytest.approx(6, rel=0.3)
    times = [event["at_s"] for event in recording_of(run)["events"]]
    assert times == sorted(times)


@pytest.mark.pure
def test_what_was_decided_before_training_began_is_shown_at_0(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    first, *others = (run / "decisions.jsonl").read_text().splitlines()
    early = json.dumps(json.loads(first) | {"at_s": ZERO_S - 3.2})
    (run / "decisions.jsonl").write_text("\n".join([early, *others]) + "\n")
    assert recording_of(run)["decisions"][0]["at_s"] == 0.0


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
    in_force = {epoch: (plan["swap"] or {}).get("active_s") for epoch, plan in after["plans"].items()}
    assert in_force == {epoch: plan["active_s"] or None for epoch, plan in after["plans"].items()}


@pytest.mark.pure
def test_the_workers_of_a_run_without_rounds_are_those_of_its_topology(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    (run / "rounds.jsonl").write_text("")
    spec = {"topology": "../topologies/quickstart.yaml", "train": {"rounds": 160}, "sync": {"policy": "mst"}}
    recording = recording_with(run, spec=spec, inputs={"experiments/../topologies/quickstart.yaml": TOPOLOGY})
    declared = {name: site.get("workers", 0) for name, site in parse_yaml(TOPOLOGY)["sites"].items()}
    assert {name: len(site["workers"]) for name, site in recording["sites"].items() if name in declared} == declared
    assert len(recording["hosts"]) == sum(declared.values()) > 0


@pytest.mark.pure
def test_a_run_that_ended_before_it_trained_is_shown(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    manifest = json.loads((run / "manifest.json").read_text())
    last = json.loads((run / "traffic.jsonl").read_text().splitlines()[-1])
    (run / "manifest.json").write_text(json.dumps(manifest | {"training_started_s": last["at_s"] + 1.5}))
    (run / "rounds.jsonl").write_text("")
    assert recording_of(run)["seconds"] == 0.0


@pytest.mark.pure
def test_a_run_that_ended_before_its_training_began_shows_its_network(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["training_started_s"], manifest["ended_s"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    for name in ("rounds.jsonl", "traffic.jsonl"):
        (run / name).write_text("")
    recording = recording_of(run)
    assert recording["seconds"] == 0.0
    assert recording["links"] and all(link["at_s"][-1] <= 0.0 for link in recording["links"].values())
    drawing = draw_network(RunRecord.read(run))
    assert drawing and any("Mbit/s" in words.get_text() for words in drawing.figure.axes[0].texts), "so does its page"


@pytest.mark.pure
def test_each_of_two_swaps_to_one_network_ends_the_changes_of_its_own_links() -> None:
    events = [{"at_s": 1.0, "kind": "change", "target": "a->b", "changed": {"loss": 0.1}}]
    events += [{"at_s": at, "kind": "swap", "target": to} for at, to in ((2.0, "B"), (3.0, "C"), (4.0, "B"))]
    its = (("B", ["a->b"]), ("C", ["b->c"]), ("B", ["b->c"]))
    swaps = [{"kind": "network", "target": to, "changed": links} for to, links in its]
    found = _changes(events, {"swaps": swaps})
    assert [one["at_s"] for one in found["a->b"]] == [1.0, 2.0]


@pytest.mark.pure
def test_a_long_recording_has_the_steps_of_its_report(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.report.recording.MOST", 40)
    found = [(one["kind"], one["target"]) for one in recording_of(run)["events"] if "after_bps" in one]
    assert found and found == [(one.kind, one.target) for one in RunRecord.read(run).steps]


@pytest.mark.pure
def test_what_is_no_run_has_no_recording(tmp_path: Path) -> None:
    with pytest.raises(NotARun) as caught:
        recording_of(tmp_path)
    assert (caught.value.rule, caught.value.file) == ("no-manifest", tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(NotARun) as caught:
        recording_of(tmp_path)
    assert (caught.value.rule, caught.value.file) == ("no-run", tmp_path)


@pytest.mark.pure
def test_brackets_thousands_deep_are_left_out(tmp_path: Path) -> None:
    run, deep = build_run(tmp_path / "run", rounds=3), '{"deep": ' + "[" * 100_000
    before = recording_of(run)
    for name in ("rounds", "links", "traffic", "events", "decisions"):
        with (run / f"{name}.jsonl").open("a") as lines:
            lines.write(f"{deep}\n")
    (run / "plans/0001.json").write_text(deep)
    recording = recording_of(run)
    for part in ("rounds", "decisions", "traffic_s", "plans", "verdict"):
        assert recording[part] == before[part]
    assert recording["links"].keys() == before["links"].keys()
    (run / "summary.json").write_text(deep)
    assert recording_of(run)["verdict"]["verdict"] == "unfinished"
    (run / "manifest.json").write_text(deep)
    with pytest.raises(NotARun):
        recording_of(run)


@pytest.mark.pure
def test_records_with_wrong_fields_are_left_out(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    before = recording_of(run)
    right = {"kind": "up", "target": "toronto-tokyo", "program": "a", "values": {"loss": 1.0}}
    times = [right, *({**right, "at_s": at_s} for at_s in (None, "noon", 10**400))]
    values = [{"at_s": ZERO_S, **right, "kind": [], "program": []}, {"at_s": ZERO_S, **right, "target": 1, "values": 1}]
    for name, records in (("decisions", times), ("events", [*times, *values]), ("curves", [*times, *values])):
        with (run / f"{name}.jsonl").open("a") as lines:
            lines.write("".join(json.dumps(record) + "\n" for record in records))
    (run / "plans/0008.json").write_text('{"trees": []}')
    (run / "plans/0009.json").write_text('{"epoch": []}')
    assert recording_of(run) == before


@pytest.mark.local
def test_a_recording_is_asked_and_not_changed(run: Path, tmp_path: Path) -> None:
    with ApiServer(RecordedRun(run), tmp_path / "view.sock"):
        client = ApiClient(tmp_path / "view.sock", "the recording")
        assert client.status()["kind"] == "recording"
        for part in ("sites", "workers", "links", "traffic", "events", "training", "plans", "rounds", "decisions"):
            client._ask("GET", f"/{part}")
        with pytest.raises(RequestRefused):
            client.change_link("toronto->tokyo", {"up": False})


@pytest.mark.local
def test_a_run_that_was_cut_off_has_the_rounds_that_it_asked_for(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    assert recording_of(run)["asked"] == manifest["spec"]["train"]["rounds"] > 0
