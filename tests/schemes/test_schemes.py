"""Tests of all schemes: options check themselves, and are known without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from testbed import schemes
from testbed.protocol import NodeConfiguration
from testbed.schemes import SCHEMES, Scheme, named
from testbed.schemes.options import Misfit, OuterOptions, read
from tests.schemes.participants import participant

ROOT = Path(__file__).parents[2]
LOADS_NO_TORCH = """
import sys
from pathlib import Path
from testbed.spec.experiment import Experiment
for file in sys.argv[1:]:
    Experiment.load(Path(file))
assert "torch" not in sys.modules
"""


@pytest.mark.pure
def test_every_module_with_a_scheme_is_registered_by_its_name() -> None:
    modules = Path(schemes.__file__).parent.rglob("*.py")
    declaring = [file for file in modules if "\nSCHEME = " in file.read_text(encoding="utf-8")]
    names = {file.parent.name if file.name == "__init__.py" else file.stem for file in declaring}
    assert names == set(SCHEMES) == {scheme.name for scheme in SCHEMES.values()}


@pytest.mark.pure
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_member_of_prague_waits_for_as_many_iterations_as_there_are_members(name: str) -> None:
    place = NodeConfiguration("prague", ("b",), ("b",), {"a": 1.0}, ("b",), {"generator": "a"})
    assert participant("prague", name, ("a", "b", "c"), place, torch.zeros(2), 4, group=2).patience == 3


@pytest.mark.pure
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_options_travel_as_plain_values(scheme: Scheme) -> None:
    options = scheme.options()
    assert scheme.read(json.loads(json.dumps(asdict(options)))) == options
    with pytest.raises(ValueError, match=rf"{scheme.name}.*no_such_option"):
        scheme.read({"no_such_option": 1})


@pytest.mark.pure
@pytest.mark.parametrize(
    ("scheme", "options", "name"),
    [
        ("local_sgd", {"every": 0}, "every"),
        ("diloco", {"every": 8, "fragments": 3}, "fragments"),
        ("hop", {"backup": 1}, "backup"),
        (
            "noloco",
            {"momentum": 0.9},
            "learning_rate",
        ),
        ("hop", {"max_ig": 4, "backup": 1, "skip": {"jump": 1}}, "jump"),
        ("hybrid", {"outer": {"momentum": 1.0}}, "momentum"),
    ],
)
def test_a_caller_meets_the_rules_that_a_file_meets(scheme: str, options: dict[str, object], name: str) -> None:
    with pytest.raises(Misfit) as caught:
        SCHEMES[scheme].read(options)
    assert caught.value.name == name


@pytest.mark.pure
def test_a_name_that_no_scheme_has_is_an_error_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"gossip.*gradients.*noloco"):
        named("gossip")


@pytest.mark.pure
def test_a_share_s_rounds_and_the_whole_ones_are_both_sent() -> None:
    sparta = SCHEMES["sparta"]
    assert sparta.read({"share": 0.01}).round_share == 0.01
    assert sparta.read({"share": 0.01, "every": 9}).round_share == pytest.approx((9 * 0.01 + 1) / 10)


@pytest.mark.pure
def test_options_inside_options_are_read() -> None:
    outer = read(OuterOptions, {"momentum": 0.5})
    assert SCHEMES["diloco"].read({"outer": {"momentum": 0.5}}) == SCHEMES["diloco"].options(outer=outer)  # type: ignore[call-arg]


@pytest.mark.local
def test_reading_an_experiment_loads_no_torch() -> None:
    files = sorted(map(str, (ROOT / "experiments").glob("*.yaml")))
    subprocess.run([sys.executable, "-c", LOADS_NO_TORCH, *files], check=True, cwd=ROOT)
