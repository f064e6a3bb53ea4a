"""Several policies on one experiment: what is asked for, what is refused before the first run, what comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.run.sweep.compare import Variant
from tests.run.running import REPOSITORY
from tests.waiting import PATIENCE_S

SMOKE = str(REPOSITORY / "experiments" / "smoke.yaml")

#: As little as two policies can be compared on.
PAIR = {
    "name": "pair",
    "topology": "topology.yaml",
    "train": {"model": "cnn", "batch": 16, "rounds": 6, "evaluate_every": 3},
    "compute": {"step_time": "100ms"},
    "sync": {"policy": "mst"},
}
TOPOLOGY = {
    "name": "pair",
    "sites": {"quito": {"workers": 1}, "lima": {"workers": 1}},
    "links": [{"between": ["quito", "lima"], "rate": "20mbit", "delay": "5ms"}],
}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("text", "policy", "options"),
    [
        ("mst", "mst", None),
        ("netstorm:roots=2", "netstorm", {"roots": 2}),
        ("star:server=paris-w0", "star", {"server": "paris-w0"}),
    ],
)
def test_a_policy_is_named_with_its_options(text: str, policy: str, options: dict[str, object] | None) -> None:
    assert Variant.parse(text) == Variant(text, policy, options)


@pytest.mark.pure
def test_the_files_options_are_for_the_files_policy() -> None:
    assert Variant.parse("mst").overrides(own="mst") == {}
    assert Variant.parse("mst").overrides(own="star") == {"sync.policy": "mst", "sync.options": "{}"}
    assert Variant.parse("star:server=a-w0").overrides(own="star")["sync.options"] == "{server: a-w0}"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policies", "mst,nosuch"), "nosuch"),
        (("--policies", "mst:roots=2"), "roots"),
        (("--policies", "mst:roots"), "'roots'"),
        (("--policies", "mst,mst"), "twice"),
        (("--policies", "mst", "--seeds", "one"), "--policies netstorm,mst --seeds 1,2,3"),
        (("--policies", "mst", "--seeds", "-1"), "seed"),
    ],
)
def test_bad_input_is_refused_before_the_first_run(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["compare", SMOKE, *words])
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.timeout(600)
def test_each_policy_runs_and_the_figures_are_told(tmp_path: Path) -> None:
    for name, value in (("pair", PAIR), ("topology", TOPOLOGY)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(value))
    words = ("pair.yaml", "--policies", "mst,netstorm:roots=2", "--seeds", "7", "--json")
    command = [sys.executable, "-m", "testbed.cli", "compare", *words]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "\n2 of 2: netstorm:roots=2, seed 7; about " in ended.stderr
    figures = json.loads(ended.stdout)
    assert list(figures) == ["mst", "netstorm:roots=2"]
    for own in figures.values():
        assert own["seconds_per_round_p50"] > 0
        assert own["ratio_to_lower_bound"] > 0.95
        assert own["ratio_to_bound"] > 0.9
        assert own["wan_bytes"] > 6 * 4 * 151_306  # six rounds of the model cross the WAN at least once each
        assert len(own["verdicts"]) == len(own["runs"]) == 1
        manifest = json.loads((tmp_path / own["runs"][0] / "manifest.json").read_text())
        assert manifest["seed"] == 7
    page = (tmp_path / "runs" / "comparison.html").read_text()
    assert "netstorm:roots=2" in page
