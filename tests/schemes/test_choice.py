"""A scheme as text: options are parsed, and errors name the wrong part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.schemes import SCHEMES
from testbed.schemes.choice import SchemeChoice
from testbed.schemes.options import Misfit
from testbed.schemes.training import RoundTraining
from testbed.starts import new_scheme
from tests.sync.plans import names, star

pytestmark = pytest.mark.pure


@given(st.integers(1, 10_000), st.floats(0.0, 0.99), st.booleans())
def test_a_text_says_what_its_options_are(every: int, momentum: float, normalise: bool) -> None:
    text = f"hybrid:every={every},outer.momentum={momentum},normalise={str(normalise).lower()}"
    wanted = {"every": every, "outer": {"momentum": momentum}, "normalise": normalise}
    assert SchemeChoice.parse(text) == SchemeChoice.of("hybrid", wanted)


def test_a_name_alone_takes_what_its_options_are_by_default() -> None:
    assert str(SchemeChoice.parse("local_sgd")) == "local_sgd (every=8)"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("diloco:every", "every"),
        ("diloco:every=often", "every"),
        ("diloco:every=0", "every"),
        ("diloco:outer.speed=1", "speed"),
        ("diloco:outer.learning_rate=Infinity", "learning_rate"),
        ("diloco:outer=1,outer.momentum=0.8", "outer"),
        ("diloco:every=4,every=8", "every=8"),
        ("diloco:outer.momentum=0.8,outer=1", "outer=1"),
        ("sgp", "sgp"),
    ],
)
def test_what_says_no_scheme(text: str, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SchemeChoice.parse(text)


def test_brackets_thousands_deep_are_a_word() -> None:
    with pytest.raises(ValueError, match="every"):
        SchemeChoice.parse("diloco:every=" + "[" * 100_000)


MEMBERS = names(2)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
COARSE = Plan(0, MEMBERS, (star(MEMBERS, "m1"),), link_codecs={"m0->m1": "int8"})


@pytest.mark.parametrize(
    ("text", "plan", "name"),
    [
        ("sparseloco", PLAN, "clip"),
        ("diloco:delay=2", PLAN, "delay"),
        ("gradients:powersgd_rank=1", PLAN, "powersgd_rank"),
        ("sparta", PLAN, "sparta"),
        ("hybrid:period=1", PLAN, "hybrid"),
        ("des_loc", COARSE, "codec"),
        ("sparseloco:clip=false", COARSE, "codec"),
    ],
)
def test_what_an_elastic_run_or_a_link_s_codec_forbids_is_refused(text: str, plan: Plan, name: str) -> None:
    with pytest.raises(Misfit) as caught:
        SchemeChoice.parse(text).check(plan, elastic=True)
    assert caught.value.name == name


@pytest.mark.parametrize("name", [name for name, its in SCHEMES.items() if its.exchange == "all-reduce"])
def test_without_elasticity_every_scheme_goes_with_a_plan_for_all(name: str) -> None:
    if not SCHEMES[name].conducted:
        options = {"period": 1} if "period" in SCHEMES[name].fields else {}
        SchemeChoice.of(name, options).check(PLAN, elastic=False)


@pytest.mark.parametrize("text", ["sparseloco:clip=false", "diloco", "gradients", "local_sgd", "des_loc", "muloco"])
def test_elastic_schemes_go_with_an_elastic_run(text: str) -> None:
    SchemeChoice.parse(text).check(PLAN, elastic=True)


def scheme_file(folder: Path, name: str = "mine") -> Path:
    """Write the start of a scheme."""
    return new_scheme(name, folder)[0]


def test_a_scheme_from_a_file_is_around_a_loop_s_steps(tmp_path: Path) -> None:
    choice = SchemeChoice.parse(f"{scheme_file(tmp_path)}:every=2")
    assert (choice.scheme.name, choice.scheme.assigns) == ("mine", False)
    parameters = [torch.full((2,), 3.0)]
    strategy = choice.scheme.algorithm.build(choice.options, RoundTraining(Mean(), parameters, 1.0))  # type: ignore[arg-type]
    for _ in range(2):
        strategy.before_step()
        strategy.after_step()
    assert parameters[0].tolist() == [2.0, 2.0], "the mean with a member that has ones"


class Mean:
    """A session with one other member, whose values are all ones, and the result of its rounds."""

    whole = True

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: object = None) -> Mean:
        tensor.add_(1).div_(2)
        return self


@pytest.mark.parametrize("text", [None, "x =", "import no_such_module", "raise SystemExit(0)", "SCHEME = 1"])
def test_a_file_that_has_no_scheme_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "other.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=str(file)):
        SchemeChoice.parse(f"{file}:every=2")


def test_a_file_that_opens_a_missing_file_is_not_reported_as_missing_itself(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("open('/no/such/table')")
    with pytest.raises(ValueError, match="/no/such/table"):
        SchemeChoice.parse(str(file))


def test_an_installed_package_s_entry_point_is_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    scheme_file(tmp_path, "theirs")
    installed = tmp_path / "theirs-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[testbed.schemes]\ntheirs = theirs\n")
    assert SchemeChoice.parse("theirs:every=4").scheme.module == "theirs"
