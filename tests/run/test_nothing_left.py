"""Whatever ends a run, and whenever: nothing of ours is left, and nothing of anyone else's is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from testbed.emulation import label
from testbed.emulation.containers.image import ensure_worker_image
from testbed.report.opening import ended_early
from testbed.report.page import write_page
from testbed.report.record import RunRecord
from tests.run import running as running_module
from tests.run.pair import endless
from tests.run.running import NOTHING, PROGRAM, TRAINS, Running

pytestmark = pytest.mark.system

#: A line of output → what the run does right after it.
MOMENTS = {
    "shaping backend": "builds routers and links",
    "directed links": "measures the links",
    "links measured": "starts containers",
    "workers in containers": "waits for the workers",
    TRAINS: "trains",
}
FOREIGN = "someone-elses"


@pytest.fixture
def foreign() -> Iterator[Container]:
    """A bridge, a namespace and a container that are not ours."""
    client = docker.from_env()
    image = ensure_worker_image(client)
    container = client.containers.run(
        image,
        ["-c", "import time; time.sleep(600)"],
        entrypoint="python3",
        name=FOREIGN,
        network_mode="none",
        detach=True,
    )
    subprocess.run(["ip", "link", "add", "foreign-br", "type", "bridge"], check=True)
    subprocess.run(["ip", "netns", "add", FOREIGN], check=True)
    yield container
    container.reload()
    places = Path(f"/run/netns/{FOREIGN}"), Path("/sys/class/net/foreign-br")
    survived = container.status == "running", *(place.exists() for place in places)
    container.remove(force=True)
    subprocess.run(["ip", "netns", "del", FOREIGN], check=False)
    subprocess.run(["ip", "link", "del", "foreign-br"], check=False)
    assert survived == (True, True, True)


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=what, marks=[pytest.mark.tour] if line == TRAINS else []) for line, what in MOMENTS.items()],
)
def test_an_interrupt_leaves_nothing(line: str, foreign: Container, tmp_path: Path) -> None:
    with Running(tmp_path, endless(tmp_path)) as running:
        running.wait_for(line)
        # As a terminal does: to the whole group, and by an impatient user twice.
        os.killpg(running.process.pid, signal.SIGINT)
        time.sleep(0.2)
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130, running.output
    assert running.left_behind == NOTHING


@pytest.mark.tour
def test_a_request_to_end_leaves_nothing(tmp_path: Path) -> None:
    with Running(tmp_path, endless(tmp_path)) as running:
        running.wait_for(TRAINS)
        running.process.terminate()
        assert running.end() == 130, running.output
    assert running.left_behind == NOTHING
    page = Path("runs") / running.directory.name / "report.html"
    assert f"records are in {page.parent}, their page is {page}" in running.lines[-1]
    assert (tmp_path / page).stat().st_size > 0


@pytest.mark.parametrize("line", [*MOMENTS][:-1], ids=[*MOMENTS.values()][:-1])
def test_after_a_kill_clean_leaves_nothing(line: str, foreign: Container, tmp_path: Path) -> None:
    with Running(tmp_path, endless(tmp_path)) as running:
        running.wait_for(line)
        time.sleep(0.3)  # into the midst of it
        running.process.kill()
        running.process.wait()
    clean("--name", running.directory.name)
    assert running.left_behind == NOTHING
    assert_said_to_be_cut_off(running)


def assert_said_to_be_cut_off(running: Running) -> None:
    record = RunRecord.read(running.directory)
    assert not record.finished
    assert "was cut off" in ended_early(record)[0]
    write_page(record)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """The program with a state folder and labels of this test's own, which are this process's meanwhile: what others
    have up on this machine is not seen, or ended."""
    with tempfile.TemporaryDirectory(prefix="tb") as folder:  # short: sockets lie in it
        marks = folder, f"TESTBED_TEST_{os.getpid()}", f"testbed.test.{os.getpid()}"
        monkeypatch.setattr(label, "STATE_ROOT", Path(marks[0]))
        monkeypatch.setattr(label, "ENVIRONMENT", marks[1])
        monkeypatch.setattr(running_module, "LABEL", marks[2])
        yield sys.executable, "-c", APART, *marks


APART = """
import sys
from pathlib import Path
from testbed.emulation.containers import fleet as containers
from testbed.emulation import label

label.STATE_ROOT, label.ENVIRONMENT = Path(sys.argv.pop(1)), sys.argv.pop(1)
label.LABEL = containers.LABEL = sys.argv.pop(1)

from testbed.cli import main
main()
"""


def test_clean_spares_what_runs_and_all_ends_it_after_a_list(apart: tuple[str, ...], tmp_path: Path) -> None:
    folders = [tmp_path / "goes-on", tmp_path / "crashes"]
    for folder in folders:
        folder.mkdir()
    with (
        Running(folders[0], endless(tmp_path), program=apart) as running,
        Running(folders[1], endless(tmp_path), program=apart) as crashed,
    ):
        running.wait_for(TRAINS)
        crashed.wait_for(TRAINS)
        crashed.process.kill()
        crashed.process.wait()
        said = clean(program=apart)
        assert f"{running.directory.name} is still running" in said
        assert crashed.left_behind == NOTHING
        assert running.process.poll() is None
        assert running.left_behind != NOTHING
        listed = clean("--all", program=apart).splitlines()
        assert listed[0].startswith(f"{running.directory.name}: running")
        assert "removed" in listed[-1]
        assert running.end() == 130, running.output
    assert running.left_behind == NOTHING


@pytest.mark.tour
def test_clean_finds_what_is_left_without_being_told_its_name(
    foreign: Container, apart: tuple[str, ...], tmp_path: Path
) -> None:
    """Of a run that was killed as it trained."""
    with Running(tmp_path, endless(tmp_path), program=apart) as running:
        running.wait_for(TRAINS)
        running.process.kill()
        running.process.wait()
    assert running.left_behind != NOTHING
    clean(program=apart)
    assert running.left_behind == NOTHING
    assert_said_to_be_cut_off(running)


def clean(*words: str, program: Sequence[str] = PROGRAM) -> str:
    return subprocess.run([*program, "clean", *words], check=True, text=True, stdout=subprocess.PIPE).stdout
