"""The evidence for a run's verdict, from its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation.links.probe import LinkFidelity
from testbed.run.conclusion import summary
from testbed.run.conclusion.conclude import _evidence, conclude
from testbed.run.directory import RunDirectory
from testbed.run.programs.standing import _network_swaps
from testbed.run.training import Outcome
from testbed.spec.experiment import Experiment
from testbed.trace.trace import Row, Trace
from tests.run.conclusion.test_bounds import SMOKE
from tests.run.conclusion.test_summary import report

pytestmark = pytest.mark.local


#: Fields of a round's report.
WHOLE = {"arrivals": {}, "peers": [], "slices": [], "steps": 1, "late_steps": 0, "waited": {}}


def concluded(folder: Path, *membership_events: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of three rounds of all of an experiment's workers."""
    run, directory = Experiment.load(SMOKE), RunDirectory("smoke", folder)
    for number in range(1, 4):
        for worker in run.topology.workers:
            directory.append("rounds.jsonl", report(number, worker.name, 2.0 * number, 2.0 * number + 1.0, **WHOLE))
    status = {"membership_events": membership_events, "swaps": []}
    made = conclude(run, directory, Outcome({}, "userspace", 0.0, 9.0, lateness={}, status=status))
    directory.close()
    return made


def test_a_trace_must_be_replayed_only_where_its_network_came() -> None:
    """A swap does not come where training ends before it, as in a run that `--set train.rounds=10` shortens.

    A replayed trace need not have changed its link: a run may end before the first change.
    """
    run = Experiment.load(SMOKE)
    name, other = next(iter(run.networks.items()))
    traced = next(link for link in other.links if link in run.topology.links and not run.topology.links[link].trace)
    trace = Trace((Row(0.0, rate_bps=5e6), Row(1.0, rate_bps=6e6)))
    run.networks[name] = replace(other, links={**other.links, traced: replace(other.links[traced], trace=trace)})
    fidelity = {traced: LinkFidelity(None, None)}
    kept = Outcome(fidelity, "userspace", 0.0, 9.0, lateness={}, status={})
    swapped = replace(kept, network_swaps=[{"file": name, "active_s": 5.0}])
    replayed = replace(swapped, lateness={traced: []})
    outcomes = kept, swapped, replayed
    found = [_evidence(run, outcome, [], [], [], [], None).links[traced] for outcome in outcomes]
    assert [link.unreplayed for link in found] == [False, True, False]
    assert found[-1].replay_late_p99_s is None


def test_the_host_is_judged_on_after_the_clock_was_set_back() -> None:
    topology = Experiment.load(SMOKE).topology
    run = Experiment.of_program(topology, {"command": ["python", "train.py"], "on_host": True})
    samples = enumerate((7199.0, 7200.0, 7201.0, 3602.0, 3603.0))
    traffic = [{"at_s": at_s, "bytes": {"a->b": 100 * number}, "cpu": number / 10} for number, at_s in samples]
    outcome = Outcome({}, "userspace", 7199.5, 7203.0, lateness={}, status={})
    assert _evidence(run, outcome, [], traffic, [], [], None).cpu == [0.1, 0.2, 0.3, 0.4]


def test_what_no_figure_is_made_of_is_not_kept_of_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: set[str] = set()

    def rounds_of(reports: Sequence[summary.Record], members: int) -> list[summary.RoundFigures]:
        kept.update(*reports)
        return original(reports, members)

    original = summary.rounds_of
    monkeypatch.setattr(summary, "rounds_of", rounds_of)
    made = concluded(tmp_path)
    assert made["training"]["rounds"] == 3
    assert WHOLE.keys() - kept == {"arrivals", "peers", "slices"}


def test_a_swap_of_a_standing_network_is_one_of_the_launch_on_it(tmp_path: Path) -> None:
    topology = Experiment.load(SMOKE).topology
    run = Experiment.of_program(topology, {"command": ["python", "train.py"], "on_host": True})
    events = [{"kind": "swap", "target": "other.yaml", "at_s": 105.0}, {"kind": "change", "target": "a", "at_s": 106.0}]
    status = {"membership_events": (), "swaps": []}
    directory = RunDirectory("smoke", tmp_path)
    swaps = _network_swaps(events)
    made = conclude(run, directory, Outcome({}, "userspace", 100.0, 109.0, {}, status=status, network_swaps=swaps))
    directory.close()
    (swap,) = made["swaps"]
    assert (swap["kind"], swap["target"], swap["active_s"]) == ("network", "other.yaml", 5.0)


def test_a_loss_beside_all_swaps_is_a_loss_of_the_run(tmp_path: Path) -> None:
    run, directory = Experiment.load(SMOKE), RunDirectory("smoke", tmp_path)
    for worker in run.topology.workers:
        directory.append("rounds.jsonl", report(1, worker.name, 2.0, 3.0, **WHOLE, lost=worker.name == "london-w0"))
    status = {"membership_events": (), "swaps": []}
    made = conclude(run, directory, Outcome({}, "userspace", 0.0, 9.0, lateness={}, status=status))
    directory.close()
    assert (made["training"]["lost_updates"], made["training"]["duplicated_updates"]) == (1, 0)
    assert "1 update lost or doubled" in summary.summary_lines(made)[-1]


def test_no_bound_is_of_other_workers_than_those_that_the_run_began_with(tmp_path: Path) -> None:
    bounds = ("bound_seconds", "ratio_to_bound", "lower_bound_seconds", "ratio_to_lower_bound")
    assert None not in {concluded(tmp_path / "all")["sync"][name] for name in bounds}
    lost = concluded(tmp_path / "one lost", {"kind": "left", "member": "london-w0"})["sync"]
    assert {lost[name] for name in bounds} == {None}
