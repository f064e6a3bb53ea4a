"""Sweep files: what they ask for, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.resources import PRESETS, SHARE
from testbed.spec.errors import SpecError
from testbed.spec.load import parse_yaml
from testbed.spec.sweep import MOST_RUNS, Sweep, as_yaml

pytestmark = pytest.mark.pure

SWEEP: dict[str, Any] = {
    "name": "policies",
    "experiment": "experiment.yaml",
    "axes": {"sync.policy": ["mst", "star"], "rates": {"full": {}, "half": {"scale": 0.5}}},
    "seeds": [1, 2],
    "repeats": 3,
}

WORDS = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner), max_leaves=8)


def load(folder: Path, **changed: Any) -> Sweep:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(SWEEP | changed, sort_keys=False))
    return Sweep.load(file)


def test_a_list_of_a_field_s_values_is_written_out(tmp_path: Path) -> None:
    axes = load(tmp_path).spec.axes
    assert axes["sync.policy"] == {"mst": {"sync.policy": "mst"}, "star": {"sync.policy": "star"}}
    assert axes["rates"] == {"full": {}, "half": {"scale": 0.5}}


def test_the_experiment_lies_where_the_file_says_from_its_own_folder_on(tmp_path: Path) -> None:
    assert load(tmp_path, experiment="../experiments/a.yaml").experiment == tmp_path / "../experiments/a.yaml"


def test_an_experiment_s_preset_is_one_wherever_the_sweep_is(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    preset = SHARE / PRESETS["experiment"] / "quickstart.yaml"
    assert load(tmp_path / "sweeps", experiment="quickstart").experiment == preset
    (tmp_path / "sweeps" / "quickstart").touch()
    assert load(tmp_path / "sweeps", experiment="quickstart").experiment == tmp_path / "sweeps" / "quickstart"


def test_the_files_of_policies_and_schemes_lie_from_the_sweep_s_folder_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "sweeps").mkdir()
    for file in (folder / "mine.py", tmp_path / "mine.py", tmp_path / "earlier.py"):
        file.touch()
    monkeypatch.chdir(tmp_path)
    options = {"also": ["mst", "./mine.py", "earlier.py", "missing.py"], "roots": 1}
    points = {
        "policy": {"sync.policy": "./mine.py", "name": "mine.py"},
        "options": {"sync.options": options},
        "whole": {"sync": {"strategy": "mine.py", "options": {"also": "earlier.py"}, "every": 4}},
    }
    sweep = load(folder, axes={"plan": points})
    files = [str(folder / "mine.py"), str(tmp_path / "earlier.py"), str(folder / "missing.py")]
    assert sweep.axes["plan"] == {
        "policy": {"sync.policy": files[0], "name": "mine.py"},
        "options": {"sync.options": {"also": ["mst", *files], "roots": 1}},
        "whole": {"sync": {"strategy": files[0], "options": {"also": [files[1]]}, "every": 4}},
    }
    assert sweep.spec.axes["plan"] == points


def test_without_axes_there_is_one_point(tmp_path: Path) -> None:
    assert load(tmp_path, axes={}).spec.points == 1


@given(VALUES)
@example("-.5")
@example("+.5e-1")
def test_a_value_s_text_is_read_as_the_value(value: Any) -> None:
    assert parse_yaml(as_yaml(value)) == value


@pytest.mark.parametrize(
    ("changed", "field", "remedy"),
    [
        ({"axis": {}}, "axis", "`axes`"),
        ({"name": "Of Policies"}, "name", "match"),
        ({"axes": ["sync.policy"]}, "axes", "sync.policy: [mst, netstorm]"),
        ({"axes": {"scale": 0.5}}, "axes.scale", "[0.5, 1]"),
        ({"axes": {"scale": []}}, "axes.scale", "[0.5, 1]"),
        ({"axes": {"scale": [1, 2, 1]}}, "axes.scale", "`repeats: 2`"),
        ({"axes": {"rates": {"half": 0.5}}}, "axes.rates.half", "mapping"),
        ({"axes": {"seed": [1, 2]}}, "axes.seed", "`seeds: [1, 2, 3]`"),
        ({"axes": {"scale": [1], "rates": {"half": {"scale": 0.5}}}}, "axes.rates", ""),
        ({"axes": {"sync.policy": ["mst"], "schemes": {"hop": {"sync": {"strategy": "hop"}}}}}, "axes.schemes", "one"),
        ({"axes": {"sync.options": [{"roots": 1}], "sync.options.roots": [1, 3]}}, "axes.sync.options.roots", "one"),
        ({"axes": {"both": {"a": {"sync.options": {"roots": 1}, "sync.options.roots": 3}}}}, "axes.both", "one of"),
        ({"axes": {"scale": list(range(MOST_RUNS))}}, "axes", "10000"),
        ({"seeds": []}, "seeds", "1"),
        ({"seeds": [1, 1]}, "seeds", "`repeats: 2`"),
        ({"seeds": [-1]}, "seeds.0", "0"),
        ({"repeats": 0}, "repeats", "1"),
        ({"repeats": "two"}, "repeats", "whole"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(changed: dict[str, Any], field: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        load(tmp_path, **changed)
    (fault,) = raised.value.faults
    assert raised.value.file == tmp_path / "sweep.yaml"
    assert fault.field == field
    assert remedy in fault.remedy
