"""Policies from files and from installed packages' entry points."""

from __future__ import annotations

import logging
from pathlib import Path

import docker  # noqa: F401 (it makes a socket as it is imported, which a pure test may not)
import pytest
from typer.testing import CliRunner

from testbed import plugins
from testbed.cli import BAD_INPUT, app
from testbed.planning import PolicyError, make_policy
from testbed.planning.policy import REGISTRY
from testbed.plugins import form_named, policy_named
from testbed.run.assignments import check_policy
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.starts import new_form, new_policy
from testbed.trace.read import read_trace
from testbed.trace.trace import TraceError
from tests.planning.networks import sites, view_of
from tests.spec.files import EXPERIMENT, write

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("registry")]

VIEW = view_of(sites(("a", "b", 10), ("b", "c", 10)), {"a": 1, "b": 1, "c": 1})
TRACE = "from testbed.trace.trace import Row, Trace\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the start of a policy, as `testbed new` writes it."""
    monkeypatch.chdir(tmp_path)
    (file,) = new_policy("mine", tmp_path)
    return file


def spoil(file: Path, name: str, statement: str) -> Path:
    """Write a copy of a policy, registered as `name`, whose `plan` begins with this statement."""
    text = file.read_text().replace('"mine"', f'"{name}"')
    head = '        """Return a plan for the members and edges'
    assert head in text
    bad = file.with_name(f"{name}.py")
    bad.write_text(text.replace(head, f"        {statement}\n{head}"))
    return bad


def test_a_policy_from_a_file_plans_with_its_options(mine: Path) -> None:
    assert policy_named("./mine.py").plan(VIEW).policy == "mine"
    plan = policy_named(str(mine), {"root": "c-w0"}).plan(VIEW)
    assert [tree.root for tree in plan.trees] == ["c-w0"]
    with pytest.raises(PolicyError) as caught:
        policy_named("./mine.py", {"speed": 3})
    assert caught.value.rule == "unknown-option"
    done = CliRunner().invoke(app, ["plan", str(topology(mine)), "--policy", "./mine.py", "--model-bytes", "1000000"])
    assert done.exit_code == 0, done.output
    assert "mine: 4 members" in done.stdout


def topology(mine: Path) -> Path:
    write(mine.parent)
    return mine.parent / "topology.yaml"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "no-file"),
        ("x =", "not-loaded"),
        ("import no_such_module", "not-loaded"),
        ("raise SystemExit(0)", "not-loaded"),
        ("x = 1", "registered"),
    ],
)
def test_a_file_that_has_no_policy_is_refused(mine: Path, text: str | None, rule: str) -> None:
    file = mine.with_name("other.py")
    if text is not None:
        file.write_text(text)
    names = set(REGISTRY)
    with pytest.raises(PolicyError) as caught:
        policy_named(str(file))
    assert caught.value.rule == rule
    assert str(file) in str(caught.value)
    assert set(REGISTRY) == names


def test_a_file_takes_no_other_policy_s_name(mine: Path) -> None:
    own = REGISTRY["mst"]
    mine.write_text(mine.read_text().replace('"mine"', '"mst"'))
    with pytest.raises(PolicyError) as caught:
        policy_named(str(mine))
    assert caught.value.rule == "registered"
    assert REGISTRY["mst"] is own


def test_a_policy_that_raises_is_told_with_its_line(mine: Path) -> None:
    bad = spoil(mine, "bad", "1 / 0")
    line = bad.read_text().splitlines().index("        1 / 0") + 1
    words = ["plan", str(topology(mine)), "--policy", str(bad), "--model-bytes", "1000000"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (BAD_INPUT, "")
    assert "ZeroDivisionError" in done.stderr and f"line {line}" in done.stderr
    file = write(mine.parent, experiment=EXPERIMENT | {"sync": {"policy": "bad.py"}})
    with pytest.raises(SpecError) as caught:
        check_policy(Experiment.load(file))
    assert caught.value.fields == ("sync.policy",)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("return None", "NoneType"),
        ("return self._plan(view.among(view.names[:1]), [Tree(view.names[0], {}, {})])", "both"),
    ],
)
def test_a_policy_whose_plan_does_not_fit_the_network_is_refused(mine: Path, made: str, said: str) -> None:
    bad = spoil(mine, "bad", made)
    done = CliRunner().invoke(app, ["plan", str(topology(mine)), "--policy", str(bad), "--model-bytes", "1000000"])
    assert (done.exit_code, done.stdout) == (BAD_INPUT, "")
    assert said in done.stderr
    file = write(mine.parent, experiment=EXPERIMENT | {"sync": {"policy": "bad.py"}})
    with pytest.raises(SpecError, match=said) as caught:
        check_policy(Experiment.load(file))
    assert caught.value.fields == ("sync.policy",)


def test_an_experiment_names_a_policy_from_its_folder_and_the_command_line_from_the_current_one(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(mine.parent, experiment=EXPERIMENT | {"sync": {"policy": "auto", "options": {"also": "mine.py"}}})
    (mine.parent / "elsewhere").mkdir()
    monkeypatch.chdir(mine.parent / "elsewhere")
    experiment = Experiment.load(file)
    assert experiment.spec.sync.options == {"also": [str(mine)]}
    assert mine in experiment.files
    check_policy(experiment)
    named = Experiment.load(file, {"sync.policy": "../mine.py", "sync.options": "{}"})
    assert Path(named.spec.sync.policy).resolve() == mine
    check_policy(named)
    for override in ({"sync.options.also": "../mine.py"}, {"sync": "{policy: auto, options: {also: ../mine.py}}"}):
        (also,) = Experiment.load(file, override).spec.sync.options["also"]
        assert Path(also).resolve() == mine


def test_auto_asks_its_own_and_those_that_are_named_without_one_that_raises(
    mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy_named(str(mine))
    explained = [policy_named("auto", options).explain(VIEW, None) for options in ({}, {"also": "mine.py"})]  # type: ignore[arg-type]
    assert ["mine" in why["round_s"] for why in explained] == [False, True]
    with caplog.at_level(logging.WARNING):
        plan = policy_named("auto", {"also": [str(spoil(mine, "bad", "1 / 0")), "mine.py"]}).plan(VIEW)
    assert plan.shape() in [make_policy(name).plan(VIEW).shape() for name in ("auto", "mine")]
    (record,) = caplog.records
    assert "bad" in record.getMessage() and "ZeroDivisionError" in record.getMessage()
    with pytest.raises(PolicyError):
        policy_named("auto", {"also": ["nobody"]}).plan(VIEW)


def test_an_installed_package_s_entry_point_is_a_policy(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(mine.parent)
    installed = mine.parent / "someones-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: someones\nVersion: 1.0\n")
    (mine.parent / "someones.py").write_text(mine.read_text().replace('"mine"', '"theirs"'))
    points = f"[{plugins.GROUP}]\ntheirs = someones\nother = someones\n"
    (installed / "entry_points.txt").write_text(points)
    assert policy_named("theirs").plan(VIEW).policy == "theirs"
    with pytest.raises(PolicyError):
        policy_named("other")
    with pytest.raises(PolicyError):
        policy_named("nobody_s")


def test_a_form_from_a_file_makes_a_trace_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_form("seconds", tmp_path)
    (tmp_path / "log.txt").write_text("0 10\n0.5 20\n")
    done = CliRunner().invoke(app, ["trace", "import", "with", "./seconds.py", "log.txt"])
    assert done.exit_code == 0, done.output
    assert [(row.time_s, row.rate_bps) for row in read_trace(tmp_path / "log.csv").trace.rows] == [
        (0, 10e6),
        (0.5, 20e6),
    ]
    (tmp_path / "log.txt").write_text("0 10\nfast\n")
    done = CliRunner().invoke(app, ["trace", "import", "with", "./seconds.py", "log.txt"])
    assert (done.exit_code, done.stdout) == (BAD_INPUT, "")
    assert "log.txt" in done.stderr and "line 2" in done.stderr


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import no_such_module", "not-loaded"),
        ("x = 1", "no-form"),
        ("def read(text): return 1 / 0", "form-raised"),
        ("def read(text): return text", "form-returned"),
        (f"{TRACE}def read(text): return Trace((Row(0, 0.0),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, float('nan')),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, 'fast'),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, delay_s=-1.0),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, jitter_s=float('nan')),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, loss=1.5),))", "range"),
        (f"{TRACE}def read(text): return Trace((Row(0, 1e6), Row(float('inf'), 1e6)))", "range"),
    ],
)
def test_a_form_that_makes_no_trace_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(TraceError) as caught:
        form_named(str(tmp_path / "bad.py"))("0 1")
    assert caught.value.rule == rule
    assert "bad.py" in str(caught.value)
    with pytest.raises(TraceError):
        form_named("nobody_s")
    with pytest.raises(TraceError):
        form_named(str(tmp_path / "none.py"))


def test_others_that_are_no_names_are_refused() -> None:
    with pytest.raises(PolicyError, match="also"):
        policy_named("auto", {"also": 3})
