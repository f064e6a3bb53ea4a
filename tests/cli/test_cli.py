"""The command line: what a wrong file or argument gets, and that nothing is left behind by it."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker  # noqa: F401 (it makes a socket as it is imported, which a pure test may not)
import pytest
import yaml
from typer.testing import CliRunner, Result

from testbed import __version__
from testbed.cli import BAD_INPUT, CANNOT, app
from testbed.cli.console import INTERRUPTED
from testbed.emulation import label
from testbed.emulation.interrupt import Interrupted
from testbed.errors import FAILED, NOT_HERE
from testbed.planning import make_policy
from testbed.run.execute import Executed
from tests.planning.networks import sites, view_of
from tests.report.runs import build_run
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write

ROOT = Path(__file__).parents[2]
TOPOLOGY_TEXT = yaml.safe_dump(TOPOLOGY, sort_keys=False)
TRACED = spoilt(TOPOLOGY, "links", 0, "trace", to={"file": "trace.csv"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, where a run would write, and a state folder of its own."""
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, words)])


@pytest.mark.pure
def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"testbed {__version__}\n")


@pytest.mark.pure
@pytest.mark.parametrize(
    ("verb", "file", "kind"),
    [
        ("run", "topology.yaml", "a topology"),
        ("simulate", "trace.csv", "a trace"),
        ("compare --policies mst", "train.py", "a program"),
        ("run", "runs/one", "a run's directory"),
        ("network up", "experiment.yaml", "an experiment"),
        ("sweep", "topology.yaml", "a topology"),
        ("cluster up", "sweep.yaml", "a sweep"),
        ("plan --policy mst --model-bytes 9", "hosts.yaml", "a hosts file"),
    ],
)
def test_a_file_of_another_kind_is_named(folder: Path, verb: str, file: str, kind: str) -> None:
    files_of_each_kind(folder)
    result = CliRunner().invoke(app, [*verb.split(), file])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert f"{file}: file: " in result.stderr and kind in result.stderr


@pytest.mark.local
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("experiment.yaml", "an experiment: cnn for 3 rounds over three (3 sites, 4 directed links, 4 workers)"),
        ("topology.yaml", "a topology: 3 sites"),
        ("sweep.yaml", "a sweep: 2 runs of an experiment"),
        ("hosts.yaml", "a hosts file: a, b"),
        ("trace.csv", "a trace"),
        ("plan.json", "a plan of mst: 2 members"),
        ("view.json", "a view: 2 members"),
    ],
)
def test_each_kind_of_file_is_checked(folder: Path, file: str, said: str) -> None:
    files_of_each_kind(folder)
    result = CliRunner().invoke(app, ["check", file])
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{file}: {said}" in result.stdout
    (folder / file).write_text((folder / file).read_text().replace("r", "", 4))
    result = CliRunner().invoke(app, ["check", file])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert file in result.stderr
    assert CliRunner().invoke(app, ["check", file, "--baseline", "x.json"]).exit_code == BAD_INPUT


@pytest.mark.local
def test_a_plan_has_a_codec_that_there_is(folder: Path) -> None:
    files_of_each_kind(folder)
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | {"codec": "fp7"}))
    result = CliRunner().invoke(app, ["check", "plan.json"])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert "'fp7'" in result.stderr


@pytest.mark.local
@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"sync.polcy": ["mst", "star"]}, "polcy"),
        ({"scale": [1, -1]}, "scale -1"),
        ({"run": {"one": {"seed_": 1}}}, "axes.run"),
    ],
)
def test_every_point_of_a_sweep_is_checked(folder: Path, axes: dict[str, Any], said: str) -> None:
    write(folder)
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "few", "experiment": "experiment.yaml", "axes": axes}))
    result = CliRunner().invoke(app, ["check", "sweep.yaml"])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert "sweep.yaml: axes" in result.stderr and said in result.stderr


@pytest.mark.local
def test_a_sweep_may_fill_in_what_its_experiment_lacks(folder: Path) -> None:
    write(folder, experiment=spoilt(EXPERIMENT, "train", "rounds", to=...))
    axes = {"train.rounds": [3, 4]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "few", "experiment": "experiment.yaml", "axes": axes}))
    result = CliRunner().invoke(app, ["check", "sweep.yaml"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "a sweep: 2 runs of an experiment: cnn for 3 rounds" in result.stdout


@pytest.mark.local
@pytest.mark.parametrize("file", ["experiment.yaml", "topology.yaml", "trace.csv", "plan.json", "view.json"])
def test_a_compressed_file_is_of_the_kind_that_the_name_inside_tells(folder: Path, file: str) -> None:
    files_of_each_kind(folder)
    plain = CliRunner().invoke(app, ["check", file]).stdout
    (folder / f"{file}.gz").write_bytes(gzip.compress((folder / file).read_bytes()))
    packed = CliRunner().invoke(app, ["check", f"{file}.gz"])
    assert (packed.exit_code, packed.stderr) == (0, "")
    assert packed.stdout.replace(".gz", "").split() == plain.split()


@pytest.mark.local
def test_a_graph_is_named_where_a_trace_is_asked_for(folder: Path) -> None:
    (folder / "a.graphml").write_text("<graphml/>")
    result = CliRunner().invoke(app, ["check", "a.graphml"])
    assert result.exit_code == BAD_INPUT
    assert "testbed topology import" in result.stderr


@pytest.mark.local
def test_a_file_of_nested_brackets_is_bad_input(folder: Path) -> None:
    (folder / "run").mkdir()
    for file in ("deep.json", "run/summary.json"):
        (folder / file).write_text("[" * 100_000)
    for given in ("deep.json", "run"):
        result = CliRunner().invoke(app, ["check", given])
        assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
        assert given in result.stderr


def files_of_each_kind(folder: Path) -> None:
    write(folder)
    (folder / "sweep.yaml").write_text("name: both\nexperiment: experiment.yaml\nseeds: [1, 2]\n")
    hosts = {"hosts": {name: {"address": f"10.0.0.{number}"} for number, name in enumerate("ab", 1)}}
    (folder / "hosts.yaml").write_text(yaml.safe_dump(hosts))
    (folder / "trace.csv").write_text("time_s,rate_mbps\n0,1\n1,2\n")
    (folder / "train.py").write_text("import torch\n")
    view = view_of(sites(("a", "b", 10)), {"a": 1, "b": 1})
    (folder / "view.json").write_text(json.dumps(view.to_json()))
    (folder / "plan.json").write_text(json.dumps(make_policy("mst", {}).plan(view).to_json()))
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "runs" / "one" / "manifest.json").write_text("{}")


@pytest.mark.local
@pytest.mark.parametrize(
    ("main", "lacking", "way"), [("main", "typer", "make setup"), ("controller_main", "cryptography", "make setup")]
)
def test_a_program_without_its_packages_says_what_brings_them(main: str, lacking: str, way: str) -> None:
    """As beside the `sync` extra, which a machine of a member has."""
    program = f"import sys; sys.modules[{lacking!r}] = None; from testbed.__main__ import {main}; sys.exit({main}())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == CANNOT
    assert lacking in done.stderr and way in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.local
@pytest.mark.parametrize(("words", "code"), [("runs >&-", 0), ("runs 2>&-", 0), ("setup <&-", BAD_INPUT)])
def test_a_command_goes_without_the_standard_files_that_are_closed(folder: Path, words: str, code: int) -> None:
    """What it opens next must not be in their place."""
    command = f"{sys.executable} -m testbed {words}"
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.local
def test_runs_are_listed_and_removed(folder: Path) -> None:
    assert "no run" in CliRunner().invoke(app, ["runs"]).stdout
    build_run(folder / "runs" / "one")
    listed = CliRunner().invoke(app, ["runs"])
    assert listed.exit_code == 0, listed.output
    assert "trusted" in listed.stdout
    (run,) = json.loads(CliRunner().invoke(app, ["runs", "--json"]).stdout)
    assert (run["state"], run["path"]) == ("trusted", "runs/one")
    for words in ([], ["--json"]):
        assert (
            CliRunner().invoke(app, ["runs", "list", *words]).stdout == CliRunner().invoke(app, ["runs", *words]).stdout
        )
    before = CliRunner().invoke(app, ["runs", "--json", "list"])
    assert json.loads(before.stdout) == [run]
    for wrong in (["runs", "rm", "two"], ["runs", "rm", "runs"], ["runs", "--json", "rm", "one"]):
        result = CliRunner().invoke(app, wrong)
        assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
        assert "write instead" in result.stderr
    assert CliRunner().invoke(app, ["runs", "rm", "one"]).exit_code == 0
    assert not (folder / "runs" / "one").exists()


def refused(folder: Path, experiment: Path, *words: str) -> str:
    """What is said of a bad file: exit 2, the shape of the message, and nothing new on disk."""
    before = sorted(folder.rglob("*"))
    result = run(experiment, *words)
    assert result.exit_code == BAD_INPUT == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "\n    write instead: " in result.stderr
    assert sorted(folder.rglob("*")) == before
    return result.stderr


#: Name → (topology, experiment, trace; file that is at fault, field, a word of the rule, a word of the remedy).
BAD = {
    "unknown field": (spoilt(TOPOLOGY, "site", to={}), EXPERIMENT, "", "topology", "site", "unknown", "`sites`"),
    "unknown field of the experiment": (
        TOPOLOGY,
        EXPERIMENT | {"colour": "red"},
        "",
        *("experiment", "colour", "unknown", "one of"),
    ),
    "negative rate": (
        spoilt(TOPOLOGY, "links", 0, "rate", to="-50mbit"),
        EXPERIMENT,
        "",
        *("topology", "links.0.rate", "'-50mbit'", "50mbit"),
    ),
    "missing trace": (
        spoilt(TOPOLOGY, "links", 0, "trace", to={"file": "no.csv"}),
        EXPERIMENT,
        "",
        *("topology", "links.0.trace", "no.csv: ", "docs/traces.md"),
    ),
    "unsorted times": (
        TRACED,
        EXPERIMENT,
        "time_s,rate_mbps\n0,1\n2,2\n1,3\n",
        *("topology", "links.0.trace", "line 4: time 1 s", "docs/traces.md"),
    ),
    "a trace with a negative rate": (
        TRACED,
        EXPERIMENT,
        "time_s,rate_mbps\n0,-1\n",
        *("topology", "links.0.trace", "line 2: rate_mbps is -1", "docs/traces.md"),
    ),
    "a link to an unknown site": (
        spoilt(TOPOLOGY, "links", 0, "between", to=["paris", "rome"]),
        EXPERIMENT,
        "",
        *("topology", "links.0.between", "'rome'", "paris, tokyo, dallas"),
    ),
    "a network that is not connected": (
        spoilt(TOPOLOGY, "links", 1, to=...),
        EXPERIMENT,
        "",
        *("topology", "links", "{dallas} and {paris, tokyo}", "link"),
    ),
    "no workers": (
        TOPOLOGY | {"sites": {site: {"workers": 0} for site in TOPOLOGY["sites"]}},
        EXPERIMENT,
        "",
        *("topology", "sites", "workers", "workers: 1"),
    ),
    "a site named twice": (
        TOPOLOGY_TEXT.replace("  tokyo:\n", "  paris:\n"),
        EXPERIMENT,
        "",
        *("topology", "line 5, column 3", "'paris'", "once"),
    ),
    "a pair joined twice": (
        spoilt(TOPOLOGY, "links", 2, to={"between": ["tokyo", "paris"], "rate": "1mbit", "delay": "1ms"}),
        EXPERIMENT,
        "",
        *("topology", "links.2.between", "tokyo and paris", "one entry"),
    ),
    "a name too long for an interface": (
        spoilt(TOPOLOGY, "sites", "san-francisco-ca", to={"workers": 1}),
        EXPERIMENT,
        "",
        *("topology", "sites.san-francisco-ca", "16 characters", "at most 15"),
    ),
    "a YAML syntax error": (
        TOPOLOGY,
        "name: small\ntopology: [topology.yaml\ntrain: {}\n",
        "",
        *("experiment", "line 3, column 6", "expected", "YAML"),
    ),
    "a policy that does not exist": (
        TOPOLOGY,
        spoilt(EXPERIMENT, "sync", "policy", to="best"),
        "",
        *("experiment", "sync.policy", "no policy 'best'; there are:", "a policy"),
    ),
    "an option that the policy does not take": (
        TOPOLOGY,
        spoilt(EXPERIMENT, "sync", "options", to={"speed": 3}),
        "",
        *("experiment", "sync.policy", "no option speed", "options"),
    ),
    "a number where a name belongs": (
        TOPOLOGY,
        EXPERIMENT | {"topology": 3},
        "",
        *("experiment", "topology", "string", "a word"),
    ),
    "a word where a number belongs": (
        TOPOLOGY,
        spoilt(EXPERIMENT, "train", "rounds", to="three"),
        "",
        *("experiment", "train.rounds", "integer", "a whole number"),
    ),
    "no number": (
        TOPOLOGY,
        EXPERIMENT | {"scale": float("nan")},
        "",
        *("experiment", "scale", "nan", "a finite number"),
    ),
    "an endless number": (
        TOPOLOGY,
        spoilt(EXPERIMENT, "train", "optimizer", to={"learning_rate": float("inf")}),
        "",
        *("experiment", "train.optimizer.learning_rate", "inf", "a finite number"),
    ),
    "a huge number": (
        spoilt(TOPOLOGY, "links", 0, "rate", to="9" * 400 + "mbit"),
        EXPERIMENT,
        "",
        *("topology", "links.0.rate", "999", "50mbit"),
    ),
    "a missing topology": (
        TOPOLOGY,
        EXPERIMENT | {"topology": "elsewhere.yaml"},
        "",
        *("elsewhere", "file", "exist", "YAML"),
    ),
    "nothing": (TOPOLOGY, "", "", "experiment", "file", "mapping", "name: value"),
}


@pytest.mark.pure
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_with_its_remedy(name: str, folder: Path) -> None:
    topology, experiment, trace, file, field, rule, remedy = BAD[name]
    (folder / "trace.csv").write_text(trace)
    said, _, remedied = refused(folder, write(folder, topology, experiment)).partition("\n    write instead: ")
    assert said.startswith(f"{folder / file}.yaml: {field}: ")
    assert rule in said
    assert remedy in remedied


@pytest.mark.pure
def test_an_experiment_that_is_not_there(folder: Path) -> None:
    assert "nowhere.yaml: file: " in refused(folder, folder / "nowhere.yaml")


@pytest.mark.pure
@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("train.rounds", "--set train.rounds: "),
        ("=3", "--set =3: "),
        ("train.rounds=none", "train.rounds: "),
        ("train.round=3", "train.round: "),
        ("sync.policy=best", "sync.policy: "),
        ("name.x=3", "name.x: "),
        ("seed=[", "seed: "),
    ],
)
def test_a_bad_override(pair: str, said: str, folder: Path) -> None:
    assert said in refused(folder, write(folder), "--set", pair)


@pytest.mark.pure
@pytest.mark.parametrize(
    "line",
    [
        "run --hosts all --set hosts=[a,b]",
        "run --hosts a,b --set hosts.paris=a",
        "simulate --seed 2 --set seed=2",
        "simulate --rounds 2 --set train.rounds=1",
    ],
)
def test_a_field_is_not_set_twice(line: str, folder: Path) -> None:
    option = line.split()[1]
    result = CliRunner().invoke(app, [*line.split(), str(write(folder))])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert option in result.stderr and "write instead: " in result.stderr
    assert not (folder / "runs").exists()


@pytest.mark.pure
def test_a_run_needs_an_experiment(folder: Path) -> None:
    assert run().exit_code == BAD_INPUT


@pytest.mark.pure
def test_a_report_says_of_a_run_that_was_cut_off_where(folder: Path) -> None:
    run = build_run(folder / "run", rounds=20)
    (run / "summary.json").rename(run / "summary.json.17.new")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["ended_s"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "rounds.jsonl").write_bytes((run / "rounds.jsonl").read_bytes()[:-40])
    result = CliRunner().invoke(app, ["report", str(run)])
    assert (result.exit_code, result.stdout) == (0, f"{run}/report.html\n")
    for words in (
        "19 of 20",
        "rounds.jsonl: 1 ",
        "summary.json",
    ):
        assert words in result.stderr


@pytest.mark.local
def test_a_report_for_which_there_is_no_room_says_so_and_why_the_run_ended(folder: Path) -> None:
    """A process may write files of 1,000 bytes, as on a disk that is full."""
    run = build_run(folder / "run", rounds=20)
    summary = {"verdict": "suspect", "reasons": ["No space left on device: 'rounds.jsonl'"], "training": {}}
    (run / "summary.json").write_text(json.dumps(summary))
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from testbed.cli import main\n"
        "main()\n"
    )
    words = [sys.executable, "-c", program, "report", str(run)]
    # Under `make coverage` the process would write what it measured as it ends, without room for that either.
    environment = {**os.environ, "PYTHONPATH": ROOT, "COVERAGE_PROCESS_CONFIG": ""}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == CANNOT
    assert "No space left on device: 'rounds.jsonl'" in done.stderr
    assert f"{run}/report.html: {NOT_HERE[errno.EFBIG]}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.pure
def test_reports_are_made_of_runs(folder: Path) -> None:
    (folder / "empty").mkdir()
    result = CliRunner().invoke(app, ["report", str(folder / "empty")])
    assert result.exit_code == BAD_INPUT
    assert "Traceback" not in result.output
    assert "empty" in result.stderr


@pytest.mark.local
def test_the_program_itself_ends_with_the_code(folder: Path) -> None:
    experiment = write(folder, experiment=EXPERIMENT | {"seed": -1})
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "run", str(experiment)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
    )
    assert done.returncode == BAD_INPUT
    assert done.stderr.startswith(f"{experiment}: seed: ")
    assert done.stdout == ""
    assert not (folder / "runs").exists()


@pytest.mark.pure
@pytest.mark.usefixtures("signal_handlers")
def test_an_interrupted_simulation_takes_no_network_down(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        signal_ = Interrupted("SIGINT")
        signal_.records = Path("runs/one")
        raise signal_

    monkeypatch.setattr("testbed.simulation.simulate.simulate", interrupted)
    result = CliRunner().invoke(app, ["simulate", str(write(folder))])
    assert result.exit_code == INTERRUPTED
    assert "runs/one" in result.stderr and "network" not in result.stderr


@pytest.mark.pure
@pytest.mark.parametrize(("page", "code"), [(Path("report.html"), 0), (None, FAILED)])
def test_a_simulation_without_its_report_has_failed(
    page: Path | None, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Executed(True, "simulated", folder, page)
    monkeypatch.setattr("testbed.simulation.simulate.simulate", lambda *_: done)
    assert CliRunner().invoke(app, ["simulate", str(write(folder))]).exit_code == code


@pytest.mark.local
def test_json_that_nobody_reads_any_longer_ends_the_program_quietly() -> None:
    """As of `testbed plan … --json | true`: the interpreter flushed the rest at its exit, and failed with 120."""
    words = ["plan", "topologies/smoke.yaml", "--policy", "mst", "--model-bytes", "100000", "--json"]
    command = [sys.executable, "-m", "testbed", *words]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (FAILED, "")


@pytest.mark.local
def test_an_output_that_cannot_hold_every_character_gets_the_others() -> None:
    command = [sys.executable, "-m", "testbed", "launch", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CMD?" in done.stdout


@pytest.mark.local
@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", {"COMP_WORDS": "testbed comp", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "testbed comp"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "testbed comp", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_shells_complete_verbs(shell: str, line: dict[str, str]) -> None:
    """As the script that `testbed --install-completion` writes asks for it."""
    done = CliRunner().invoke(app, [], prog_name="testbed", env={"_TESTBED_COMPLETE": f"complete_{shell}", **line})
    assert "compare" in done.stdout
    assert "doctor" not in done.stdout
    given = CliRunner().invoke(app, [], prog_name="testbed", env={"_TESTBED_COMPLETE": f"source_{shell}"})
    assert "_TESTBED_COMPLETE" in given.stdout


@pytest.mark.local
def test_a_verb_loads_what_it_needs_when_it_is_called() -> None:
    """`testbed network list` took 1.4 s with the solvers that only planning needs, and takes 0.4 without."""
    loaded = "import sys, testbed.cli, testbed.cli.tables, testbed.emulation.daemon, testbed.api.client"
    look = f"{loaded}; print({{'scipy', 'networkx', 'matplotlib', 'docker'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()"
