"""`testbed new`: what it writes is right as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner, Result

import testbed
from testbed.cli import BAD_INPUT, app
from testbed.resources import preset_or_file
from testbed.run.assignments import check_policy
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology
from testbed.starts import KINDS, new_experiment, new_policy, new_scheme

ROOT = Path(testbed.__file__).parents[1]

#: Run beside a copy of the package with a scheme and a policy more.
USES_BOTH = """
import torch
from pathlib import Path
from types import SimpleNamespace
from testbed.plugins import policy_named
from testbed.run.assignments import check_policy
from testbed.run.view import declared_view
from testbed.schemes import named
from testbed.schemes.training import RoundTraining
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

view = declared_view(Topology.load(Path("topologies/smoke.yaml")), 1_000_000)
tree, = policy_named("my_policy.py").plan(view).trees
assert tree.root.startswith("paris") and len(tree.reduce) == 3, tree
assert policy_named("my_policy.py", {"root": "madrid-w0"}).plan(view).trees[0].root == "madrid-w0"

overrides = {"sync.strategy": "my_scheme", "sync.policy": "my_policy.py", "sync.every": "4", "events": "[]"}
experiment = Experiment.load(Path("experiments/smoke.yaml"), overrides)
check_policy(experiment)

class Other:  # a member that has only ones, and for the second round is in the same group
    wholes = [True, False, True]
    def allreduce(self, tensor, weight=1.0, residual=None):
        tensor.add_(1).div_(2)
        return SimpleNamespace(whole=self.wholes.pop(0))

parameters = [torch.full((2, 2), 3.0), torch.full((3,), 5.0)]
training = RoundTraining(Other(), parameters, 1.0)
strategy = named("my_scheme").algorithm.build(experiment.spec.sync.own, training)
for step in range(5):
    assert not strategy.over(1, step) or step > 3
    strategy.before_step()
    strategy.after_step()
assert [value.flatten()[0].item() for value in parameters] == [2.0, 3.0]
state = strategy.state_dict()
strategy.settle()
assert [value.flatten()[0].item() for value in parameters] == [1.25, 1.5] and strategy.over(3, 5)
strategy.load_state_dict(state)
assert strategy.state_dict() == state
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(*words: str) -> Result:
    return CliRunner().invoke(app, ["new", *words])


@pytest.mark.pure
def test_an_experiment_comes_with_its_network(folder: Path) -> None:
    result = new("experiment", "mine-2")
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["experiments/mine-2.yaml", "topologies/mine-2.yaml"]
    experiment = Experiment.load(folder / "experiments/mine-2.yaml")
    check_policy(experiment)
    assert (experiment.name, experiment.topology.name) == ("mine-2", "mine-2")
    assert new("topology", "other").stdout == "topologies/other.yaml\n"
    assert len(Topology.load(folder / "topologies/other.yaml").workers) == 4
    assert new("experiment", "other").stdout == "experiments/other.yaml\n", "the topology is there"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "x"], "experiment, topology, scheme, policy, form"),
        (["topology", "Mine"], "'Mine'"),
        (["experiment", "../x"], "'../x'"),
        (["scheme", "my-scheme"], "'my-scheme'"),
        (["scheme", "hop"], "'hop'"),
        (["scheme", "class"], "'class'"),
        (["scheme", "none"], "'none'"),  # its class would be None
        (["policy", "cpn"], "'cpn'"),
        (["policy", "blueconnect"], "'blueconnect'"),  # registered by the module of another policy
        (["policy", "class"], "'class'"),
    ],
)
def test_what_cannot_be_begun_is_said_and_nothing_written(words: list[str], said: str, folder: Path) -> None:
    result = new(*words)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr
    assert not list(folder.iterdir())


@pytest.mark.pure
@pytest.mark.parametrize("kind", ["experiment", "topology", "policy", "form"])
def test_what_is_there_is_not_written_over(kind: str, folder: Path) -> None:
    made = KINDS[kind]("mine", folder)[0]
    made.write_text("mine")
    assert "mine" in new(kind, "mine").stderr
    assert made.read_text() == "mine"


@pytest.mark.pure
@pytest.mark.parametrize("kind", ["policy", "scheme"])
def test_the_commands_of_a_start_name_what_is_there_without_a_checkout(kind: str, folder: Path) -> None:
    text = KINDS[kind]("mine", folder)[0].read_text()
    commands = re.findall(r"^    testbed (plan|run) (\S+)", text, re.MULTILINE)
    assert commands
    for verb, name in commands:
        assert preset_or_file("topology" if verb == "plan" else "experiment", Path(name)).exists(), name


@pytest.mark.local
def test_a_scheme_begun_outside_of_a_checkout_is_a_file_that_an_experiment_names(folder: Path) -> None:
    result = new("scheme", "mine")
    assert (result.exit_code, result.stdout) == (0, "mine.py\n")
    assert "sync.strategy=./mine.py" in (folder / "mine.py").read_text()
    assert "mine.py" in new("scheme", "mine").stderr, "a file that is there stays"
    for where in (folder, folder / "experiments"):
        new("experiment", "own")
        changes = {"sync.strategy": "./mine.py", "sync.every": "4"}
        file = folder / "experiments" / "own.yaml"
        if where != folder:  # the file names it, from its own folder on
            (folder / "mine.py").rename(where / "mine.py")
            file.write_text(re.sub(r"strategy: \w+", "strategy: ./mine.py\n  every: 4", file.read_text(), count=1))
            changes = {}
        sync = Experiment.load(file, changes).spec.sync
        assert (sync.strategy, sync.scheme.name, sync.own.local_steps) == (str(where / "mine.py"), "mine", 4)
    result = CliRunner().invoke(app, ["simulate", str(file), "--rounds", "3"])
    assert result.exit_code == 0, result.output
    assert "3 rounds" in result.output


@pytest.mark.local
def test_a_scheme_and_a_policy_run_as_they_are(tmp_path: Path) -> None:
    for name in ("testbed", "topologies", "experiments", "traces"):
        copytree(ROOT / name, tmp_path / name)  # with what is compiled of it, which takes two seconds
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    made = [*new_policy("my_policy", tmp_path), *new_scheme("my_scheme", tmp_path, tmp_path / "testbed")]
    assert len(made) == 3
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", USES_BOTH], cwd=tmp_path, env=environment, check=True)
    for check in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *check, *made], cwd=tmp_path, check=True)


@pytest.mark.local
def test_a_start_that_cannot_be_written_whole_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "topologies").touch()
    with pytest.raises(FileExistsError):
        new_experiment("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["topologies"]
