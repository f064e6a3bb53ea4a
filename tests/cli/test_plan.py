"""`testbed plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, app
from testbed.plan import Plan
from testbed.planning import make_policy
from testbed.starts import new_policy
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def plan(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def test_a_network_s_plan_with_its_prediction_and_its_bound() -> None:
    result = plan(TOPOLOGIES / "netstorm9.yaml", "--policy", "packing", "--model-bytes", "1000000", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    made = Plan.from_json(figures["plan"])
    assert made.policy == "packing" and len(made.members) == figures["members"] == 9
    assert figures["bound_seconds"] <= figures["lower_bound_seconds"] <= figures["simulated_seconds"]
    least = figures["lower_bound_seconds"]
    assert figures["ratio_to_lower_bound"] == pytest.approx(figures["predicted_seconds"] / least)
    assert figures["ratio_to_bound"] == pytest.approx(figures["predicted_seconds"] / figures["bound_seconds"])


def test_a_person_reads_the_trees_and_the_seconds() -> None:
    result = plan(TOPOLOGIES / "smoke.yaml", "--policy", "star:keys=one", "--model-bytes", "100000")
    assert result.exit_code == 0, result.output
    assert "predicted" in result.stdout and "times the lower bound" in result.stdout and "simulated" in result.stdout


def test_auto_says_whose_plan_it_took_and_what_every_policy_s_round_takes() -> None:
    words = (TOPOLOGIES / "smoke.yaml", "--policy", "auto", "--model-bytes", "100000")
    figures = json.loads(plan(*words, "--json").stdout)
    assert figures["policy"] == figures["plan"]["policy"] in figures["why"]["round_s"]
    read = plan(*words).stdout
    assert f"{figures['policy']}: 4 members" in read and "seconds a round" in read and "netstorm" in read


def test_a_recorded_view_is_replayed(tmp_path: Path) -> None:
    view = view_of(sites(("a", "b", 50)), {}, model_bytes=123_456, knowledge="measured")
    file = tmp_path / "0.json"
    file.write_text(json.dumps(view.to_json()))
    figures = json.loads(plan("--policy", "mst", "--view", file, "--json").stdout)
    assert (figures["model_bytes"], figures["knowledge"], figures["members"]) == (123_456, "measured", 2)


def test_a_recorded_decision_begins_from_the_plan_that_was_in_force(tmp_path: Path) -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20), ("a", "c", 30)), {}, model_bytes=3_000_000)
    last = make_policy("packing").plan(view)
    for name, value in (("view", view.to_json()), ("plan", last.to_json())):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    words = ("--policy", "packing", "--view", tmp_path / "view.json", "--last", tmp_path / "plan.json", "--json")
    assert json.loads(plan(*words).stdout)["plan"] == make_policy("packing").replan(view, last).to_json()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "best", "--model-bytes", "9"), "auto, blueconnect"),
        (("--policy", "ring:order", "--model-bytes", "9"), "policy:option=value"),
        (("--policy", "ring:order=last", "--model-bytes", "9"), "naive, nearest, two-opt"),
        (("--policy", "ring"), "--model-bytes"),
        (("--policy", "ring", "--view", "nowhere.json"), "one of them"),
        (("--policy", "ring", "--model-bytes", "9", "--last", "nowhere.json"), "nowhere.json: "),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(words: tuple[str, ...], said: str) -> None:
    result = plan(TOPOLOGIES / "smoke.yaml", *words)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr


def test_a_view_that_is_not_there_is_named() -> None:
    result = plan("--policy", "ring", "--view", "nowhere.json")
    assert result.exit_code == BAD_INPUT
    assert "nowhere.json: " in result.stderr and "views/0000.json" in result.stderr


def test_a_view_whose_model_has_no_end_is_refused(tmp_path: Path) -> None:
    view = view_of(sites(("a", "b", 50)), {}, model_bytes=3_000_000)
    text = json.dumps(view.to_json()).replace("3000000", "1e999")
    (tmp_path / "view.json").write_text(text)
    result = plan("--policy", "mst", "--view", tmp_path / "view.json")
    assert (result.exit_code, "1e999" in text) == (BAD_INPUT, True)


@pytest.mark.usefixtures("registry")
def test_a_file_that_holds_no_plan_is_not_the_policy_s_fault(tmp_path: Path) -> None:
    (file,) = new_policy("mine", tmp_path)
    words = ("--policy", file, "--model-bytes", "100000", "--last", "nowhere.json")
    result = plan(TOPOLOGIES / "smoke.yaml", *words)
    assert result.exit_code == BAD_INPUT
    assert "nowhere.json: " in result.stderr and "raised" not in result.stderr


def test_a_view_of_nested_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "view.json").write_text("[" * 100_000)
    result = plan("--policy", "mst", "--view", tmp_path / "view.json")
    assert result.exit_code == BAD_INPUT
    assert "view.json: " in result.stderr and "views/0000.json" in result.stderr


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("reasons", "code", "said"),
    [
        ('{"round_s": 1.5}', 0, '"round_s": 1.5'),
        ("{'groups': ['a', 'b']}", 0, '"groups"'),
        ("1 / 0", BAD_INPUT, "policy mine raised ZeroDivisionError"),
        ("{'groups': {1, 2}}", BAD_INPUT, "policy mine raised TypeError"),
    ],
)
def test_a_policy_of_a_file_explains_its_plan_by_figures_of_its_own(
    reasons: str, code: int, said: str, tmp_path: Path
) -> None:
    (file,) = new_policy("mine", tmp_path)
    method = f"    def explain(self, view, plan):\n        return {reasons}\n\n"
    file.write_text(file.read_text().replace("    def plan(self", f"{method}    def plan(self", 1))
    for words in ((), ("--json",)):
        result = plan(TOPOLOGIES / "smoke.yaml", "--policy", file, "--model-bytes", "100000", *words)
        assert result.exit_code == code and said in result.output, result.output
