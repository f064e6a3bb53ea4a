"""What the verbs of a standing network say to what is wrong; nothing is made."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest
import yaml
from typer.testing import CliRunner, Result

from testbed.cli import ALIASES, app, running_network
from testbed.cli.running_network import OLDER_LINK
from testbed.cli.tables import console, print_status
from testbed.emulation import label
from testbed.emulation.containers import engine
from testbed.emulation.host import fixes
from testbed.emulation.process import start_ticks
from tests.cli.standing import environment
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of this test's own, and the rights that it takes to look into it."""
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


@pytest.mark.pure
def testbed(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


testbed.__test__ = False  # type: ignore[attr-defined]


def refused(*words: str | Path) -> str:
    result = testbed(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def write(folder: Path, value: object) -> Path:
    (folder / "three.yaml").write_text(yaml.safe_dump(value, sort_keys=False))
    return folder / "three.yaml"


def stand(*names: str) -> None:
    """As if these networks were up: each has this process for its owner, and a socket that nobody serves."""
    record = json.dumps({"pid": os.getpid(), "started": start_ticks(os.getpid())})
    for name in names:
        label.state_folder(name).mkdir(parents=True)
        (label.state_folder(name) / "owner.json").write_text(record)
        (label.state_folder(name) / "network.sock").touch()


@pytest.mark.pure
@pytest.mark.parametrize("verb", ["up", "swap"])
def test_a_bad_topology(verb: str, apart: Path) -> None:
    file = write(apart, spoilt(TOPOLOGY, "links", 0, "rate", to="fast"))
    said = refused("network", verb, file)
    assert said.startswith(f"{file}: links.0.rate: ")
    assert "write instead: " in said
    assert "none.yaml: " in refused("network", verb, apart / "none.yaml")


@pytest.mark.pure
@pytest.mark.parametrize("name", ["", "Andes", "../andes", "a" * 32, "an_des"])
def test_a_bad_name(name: str, apart: Path) -> None:
    file = write(apart, TOPOLOGY)
    if name:  # without one it is the topology's
        assert "--name" in refused("network", "up", file, "--name", name)
        assert name in refused("network", "down", "--name", name)
    if "/" in name or name == "":
        assert repr(name) in refused("network", "clean", "--name", name)
    assert not label.networks()


@pytest.mark.pure
def test_a_name_that_is_up(apart: Path) -> None:
    stand("three")
    said = refused("network", "up", write(apart, TOPOLOGY))
    assert "`testbed network down --name three`" in said


@pytest.mark.pure
def test_an_unknown_backend(apart: Path) -> None:
    assert "magic" in refused("network", "up", write(apart, TOPOLOGY), "--backend", "magic")


@pytest.mark.pure
def test_an_interrupt_after_a_network_is_up_does_not_say_that_it_was_taken_down(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during: list[object] = []

    def show(*_: object) -> str:
        during.append(signal.getsignal(signal.SIGINT))
        return "  page: page.html"

    monkeypatch.setattr("testbed.emulation.daemon.bring_up", lambda *_: None)
    monkeypatch.setattr("testbed.api.entry.show_in_browser", show)
    result = testbed("network", "up", write(apart, TOPOLOGY), "--port", "0")
    assert result.exit_code == 0, result.output
    assert "three is up" in result.stdout and "page.html" in result.stdout
    assert during == [signal.getsignal(signal.SIGINT)]


VERBS = {
    "exec": ("network", "exec", "paris-r", "--", "true"),
    "link": ("link", "down", "paris->tokyo"),
    "swap": ("network", "swap", "three.yaml"),
    "down": ("network", "down"),
}

#: Older forms of commands, each with the form that `--help` lists.
OLDER = [
    ("up three.yaml --cli --open", "network up three.yaml --cli --open"),
    ("status --json", "network list --json"),
    ("status --name one", "network list --name one"),
    ("exec paris-r -- true", "network exec paris-r -- true"),
    ("swap --name one three.yaml", "network swap --name one three.yaml"),
    ("down --name three", "network down --name three"),
    ("clean --name three --all", "network clean --name three --all"),
    ("link paris->tokyo --down", "link down paris->tokyo"),
    ("link --up --name one paris->tokyo --json", "link up --name one paris->tokyo --json"),
    ("link --rate 5mbit --name one paris-tokyo", "link set --rate 5mbit --name one paris-tokyo"),
    (
        "link paris->tokyo --delay 5ms --jitter 1ms --loss 1%",
        "link set paris->tokyo --delay 5ms --jitter 1ms --loss 1%",
    ),
]


@pytest.mark.local
@pytest.mark.parametrize("up", [(), ("one",), ("one", "two")], ids=len)
@pytest.mark.parametrize(("older", "newer"), OLDER)
def test_an_older_form_does_the_same(
    older: str, newer: str, up: tuple[str, ...], apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(apart)
    write(apart, TOPOLOGY)
    stand(*up)
    before, now = (testbed(*words.split()) for words in (older, newer))
    assert (before.exit_code, before.stdout, before.stderr) == (now.exit_code, now.stdout, now.stderr)


@pytest.mark.pure
@pytest.mark.parametrize(("older", "newer"), [words for words in OLDER if words[0].startswith("link")])
def test_an_older_form_of_link_changes_the_same(older: str, newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(running_network, "_change_link", lambda *change: asked.append(change))
    for words in (older, newer):
        testbed(*words.split())
    assert len(asked) == 2 and asked[0] == asked[1]


@pytest.mark.pure
def test_every_older_form_is_tried_and_none_is_listed() -> None:
    assert {words.split()[0] for words, _ in OLDER} == {*ALIASES, "link"}
    listed = testbed("--help").stdout
    assert "│ network " in listed
    assert not [name for name in ALIASES if f"│ {name} " in listed]
    assert OLDER_LINK not in testbed("link", "--help").stdout


@pytest.mark.pure
@pytest.mark.parametrize("verb", VERBS)
def test_which_network(verb: str, apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(apart)
    write(apart, TOPOLOGY)
    assert "`testbed network up TOPOLOGY`" in refused(*VERBS[verb])
    stand("one", "two")
    assert "one, two" in refused(*VERBS[verb])
    named = [*VERBS[verb]]
    named[2:2] = ["--name", "three"]
    assert all(name in refused(*named) for name in ("three", "one, two"))


@pytest.mark.local
def test_brackets_in_a_network_s_file_and_failure_are_printed() -> None:
    replay = {"elapsed_s": 1.0, "links": 0, "late_ms_p99": None}
    network = {"name": "andes", "file": "/data/[old]/andes.yaml", "backend": "netem", "pid": 7, "replay": replay}
    with console.capture() as said:
        print_status([{**network, "failure": "no file [/old]", "hosts": {}, "links": {}}], {})
    assert "/data/[old]/andes.yaml" in said.get() and "no file [/old]" in said.get()


@pytest.mark.pure
def test_a_link_change_without_a_change_is_refused() -> None:
    stand("one")
    assert "--rate" in refused("link", "set", "paris->tokyo")
    assert "--rate" in refused("link", "paris->tokyo")
    assert "--up" in refused("link", "paris->tokyo", "--up", "--down")


@pytest.mark.local
@pytest.mark.parametrize(
    "words",
    ["link down paris->tokyo", "link paris->tokyo --down", "trace convert x.csv --run runs/latest --link paris->tokyo"],
)
def test_a_shell_s_redirection_is_told(words: str, apart: Path) -> None:
    line = ["sh", "-c", f"{shlex.quote(sys.executable)} -m testbed {words}"]
    done = subprocess.run(line, cwd=apart, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "made the file tokyo" in done.stderr
    assert "'paris->tokyo'" in done.stderr
    assert (apart / "tokyo").read_text() == ""


@pytest.mark.pure
def test_no_network_is_a_state_too() -> None:
    assert testbed("network", "list").stdout == "no network is up\n"
    assert json.loads(testbed("network", "list", "--json").stdout) == {"networks": [], "runs": []}


@pytest.mark.pure
def test_what_a_crash_left_is_shown() -> None:
    label.state_folder("three").mkdir(parents=True)
    assert "`testbed network clean`" in testbed("network", "list").stdout


@pytest.mark.local
def test_an_owner_that_does_not_answer() -> None:
    stand("one")
    result = testbed("network", "list")
    assert result.exit_code == 1
    assert " one " in result.stderr


@pytest.fixture
def broken_engine(apart: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What listens in the place of an engine, but closes each connection; and what `clean` looks for is this test's."""
    monkeypatch.setattr(label, "ENVIRONMENT", f"TESTBED_TEST_{os.getpid()}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{apart / 'engine.sock'}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(apart / "engine.sock"))
        server.listen()

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=refuse)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.local
@pytest.mark.usefixtures("broken_engine")
def test_an_engine_that_does_not_answer_may_have_containers() -> None:
    label.state_folder("three").mkdir(parents=True)
    result = testbed("network", "clean", "--name", "three")
    assert result.exit_code == 3, result.output
    assert "Docker" in result.stderr
    assert result.stdout == ""
    assert label.networks() == []


@pytest.mark.local
@pytest.mark.usefixtures("broken_engine")
def test_an_engine_that_fails_meanwhile_may_have_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    client = docker.DockerClient(os.environ["DOCKER_HOST"], version="1.44")
    monkeypatch.setattr(engine, "connect", lambda: client)
    label.state_folder("three").mkdir(parents=True)
    result = testbed("network", "clean", "--name", "three")
    assert result.exit_code == 3, result.output
    assert "containers" in result.stderr
    assert label.networks() == []


@pytest.mark.local
@pytest.mark.usefixtures("broken_engine")
def test_the_doctor_says_that_containers_may_be_left() -> None:
    label.state_folder("three").mkdir(parents=True)
    with pytest.raises(fixes.CannotFix, match="three"):
        fixes.take_leftovers_away()


@pytest.mark.local
def test_no_engine_has_no_containers(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "DEFAULT_ADDRESS", f"unix://{apart / 'none.sock'}")
    monkeypatch.setattr(label, "ENVIRONMENT", f"TESTBED_TEST_{os.getpid()}")
    result = testbed("network", "clean")
    assert result.exit_code == 0, result.output
    assert result.stdout == "removed: 0 networks, 0 containers, 0 processes\n"


@pytest.mark.pure
def test_without_root(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (apart / "topology.yaml").write_text(write(apart, TOPOLOGY).read_text())
    experiment, sweep = apart / "experiment.yaml", apart / "sweep.yaml"
    experiment.write_text(yaml.safe_dump(EXPERIMENT))
    sweep.write_text("name: both\nexperiment: experiment.yaml\n")
    runs = [("run", str(experiment)), ("compare", str(experiment), "--policies", "mst"), ("sweep", str(sweep))]
    networks = [("network", "up", "three.yaml"), ("launch", "three.yaml", "--", "true"), ("worker", "add", "paris")]
    lists = [("network", "list"), ("network", "clean"), ("network", "clean", "--all")]
    train = {key: value for key, value in EXPERIMENT["train"].items() if key != "rounds"}
    (apart / "part.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "train": train}))
    axes = apart / "axes.yaml"
    axes.write_text("name: both\nexperiment: part.yaml\naxes: {train.rounds: [3, 4]}\n")
    runs.append(("sweep", str(axes)))
    for words in (*networks, *VERBS.values(), *runs, *lists):
        result = testbed(*[str(apart / word) if word == "three.yaml" else word for word in words])
        assert result.exit_code == 3, words
        assert "run it with sudo" in result.stderr
        assert len(result.stderr.splitlines()) == 1
