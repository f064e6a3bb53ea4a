"""The package's public names, a run's result, and the documentation's code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed import EmulationError, Result, SpecError, execute
from testbed.emulation import label
from testbed.report.run_files import NotARun
from testbed.run.errors import CannotRun, TooMuch
from tests.report.runs import build_run

ROOT = Path(__file__).parents[1]

CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.pure
def test_every_public_name_is_there() -> None:
    assert [getattr(testbed, name).__name__ for name in testbed.__all__] == testbed.__all__
    assert {*testbed.__all__} <= {*dir(testbed)}
    with pytest.raises(AttributeError, match="Tested"):
        testbed.Tested  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.local
def test_to_import_it_loads_none_of_its_modules_and_nothing_from_outside() -> None:
    program = (
        "import json, sys; before = set(sys.modules); import testbed; print(json.dumps([*{*sys.modules} - before]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in json.loads(done.stdout) if not name.startswith("__editable__")}
    assert "testbed" in loaded
    assert [name for name in loaded if name.startswith("testbed.")] == ["testbed.lazy"]
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"testbed"}


@pytest.mark.pure
def test_what_this_machine_cannot_do_is_one_kind_of_error() -> None:
    assert issubclass(CannotRun, EmulationError)
    assert issubclass(TooMuch, EmulationError)


@pytest.mark.pure
def test_a_file_that_is_wrong_is_said_before_there_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.yaml").write_text("name: wrong\n")
    with pytest.raises(SpecError):
        execute("wrong.yaml")
    assert not (tmp_path / "runs").exists()


@pytest.mark.pure
def test_a_result_is_what_the_directory_recorded(tmp_path: Path) -> None:
    result = Result(build_run(tmp_path / "made-up", rounds=160))
    assert result.finished
    assert result.verdict == json.loads((tmp_path / "made-up/summary.json").read_text())["verdict"]
    assert result.summary["training"]["rounds"] == len(result.rounds) == 160
    assert {"toronto->tokyo"} <= set(result.links["link"]) & set(result.traffic["link"])
    assert len(result.reports) == 8 * 160
    assert not result.events.empty


@pytest.mark.pure
def test_a_run_that_broke_off_has_a_result_too(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    result = Result(tmp_path)
    assert (result.finished, result.verdict, result.reasons) == (False, "suspect", ())
    assert result.rounds.empty
    with pytest.raises(NotARun):
        Result(tmp_path / "none").rounds  # noqa: B018


@pytest.mark.long
@pytest.mark.pure
def test_the_notebook_s_code_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells run one after another, as in Jupyter."""
    build_run(tmp_path / "runs/latest", rounds=40)
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    notebook = json.loads((ROOT / "examples/run.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "it is kept without what it printed"
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert said.startswith("trusted")
    assert "toronto->washington" in said
    written = [*(tmp_path / "runs/latest/export").iterdir()]
    figures = {"training", "rounds", "network", "links", "waiting", "time-spent", "host"}
    assert {file.stem for file in written if file.suffix == ".pdf"} == figures
    assert {"rounds.csv", "traffic.csv"} <= {file.name for file in written}


@pytest.mark.system
def test_the_documentation_s_code_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the name differs from the page: another network of that name may be up on this machine."""
    monkeypatch.chdir(tmp_path)
    for folder in ("experiments", "topologies", "traces"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    name = f"t{os.getpid()}-python"
    network, experiment = CODE.findall((ROOT / "docs/python.md").read_text())
    exec(network.replace('quickstart.yaml")', f'quickstart.yaml", name="{name}")'), {})
    said = capfd.readouterr().out
    assert "3 received" in said
    assert "'washington->tokyo'" in said
    assert name not in label.networks()
    found: dict[str, Result] = {}
    exec(experiment, found)
    assert found["result"].finished
    assert len(found["result"].rounds) == 12
    assert "paris->london" in capfd.readouterr().out
    assert found["result"].directory.name not in label.networks()
