"""`testbed launch`: programs that know of no testbed, on the workers of a network."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ClassVar

import docker
import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.emulation import label
from testbed.emulation.containers.image import hash_of
from testbed.emulation.daemon import client
from testbed.errors import FAILED
from testbed.report.record import RunRecord
from testbed.run.directory import past_runs
from testbed.run.execute import Executed
from tests.cli.standing import ROOT, Standing, command, environment, left_of, testbed, up, write
from tests.waiting import until

MARK = f"t{os.getpid()}-launch"

#: What a step of examples/ddp.py sends each way between two workers: the gradients of its layers in fp32.
GRADIENT_BYTES = 4 * (64 * 1024 + 1024 + 1024 * 64 + 64)

#: Says what it was told and where it is, and waits; `SAYS` is what it says first.
WAITS = """
import os, sys, time
print("SAYS", os.environ["RANK"], os.getcwd(), os.listdir(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    folder.chmod(0o755)
    for name, text in {
        "waits.py": WAITS,
        "imports.py": "import no_such_module\n",
        "dies.py": "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(600)\n",
        "ddp.py": (ROOT / "examples/ddp.py").read_text(),
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def pair(folder: Path) -> Path:
    return write(folder, "pair", {"oslo": 1, "bergen": 1}, ("oslo", "bergen", "50mbit", "5ms"))


@pytest.fixture(scope="module")
def fjords(pair: Path, folder: Path) -> Iterator[Standing]:
    """Up for all tests of this module, with the scripts in its containers."""
    name = f"{MARK}-fjords"
    testbed("up", pair, "--name", name, "--files", folder, "--tmp", "8MiB", "--shm", "16MiB", "--out", "4MiB")
    try:
        yield Standing(name)
    finally:
        testbed("clean", "--name", name)


#: How long a link is away from a step, at least.
AWAY_S = 1.0

#: A launch that prints nothing for so long hangs: steps take 4 s at most beside other work.
SILENT_S = 200


class Launching:
    """A launch under way, with what it prints; its directory is made in `folder`. The test's end is its end."""

    under_way: ClassVar[list[Launching]] = []

    def __init__(self, folder: Path, *words: str | Path) -> None:
        self.under_way.append(self)
        self.folder = folder
        self.process = subprocess.Popen(
            command("launch", *words),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._printed: SimpleQueue[str] = SimpleQueue()  # lines, and "" at its end
        Thread(target=self._read, daemon=True).start()

    def line(self, pattern: str) -> re.Match[str]:
        """The next line with this in it."""
        passed = ""
        for line in self._lines():
            passed += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in\n{passed}")

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it printed at last."""
        said = "".join(self._lines())
        return self.process.wait(SILENT_S), said

    def _lines(self) -> Iterator[str]:
        """Yield the lines printed from now on. AssertionError, with the lines so far, if none comes for SILENT_S."""
        passed = ""
        while True:
            try:
                line = self._printed.get(timeout=SILENT_S)
            except Empty:
                raise AssertionError(f"it goes on, {SILENT_S} s after\n{passed}") from None
            if not line:
                self._printed.put("")
                return
            passed += line
            yield line

    @property
    def nothing_waits(self) -> bool:
        """True if no line was printed since."""
        return self._printed.empty()

    def _read(self) -> None:
        """On a thread of its own, so that a test that waits in vain can say what was printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.put(line)
        self._printed.put("")

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "runs/latest/summary.json").read_text()))

    @property
    def programs(self) -> list[int]:
        """The processes that it has started and that still run."""
        launch = (self.folder / "runs/latest").resolve().name
        return [pid for pid, _ in label.processes(launch, label.LAUNCH)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    while Launching.under_way:
        launching = Launching.under_way.pop()
        launching.process.terminate()
        launching.end()


def step_s(launching: Launching) -> float:
    """Return the seconds that rank 0 prints for its next step."""
    return float(launching.line(r"oslo-w0   \| .* step_seconds=([\d.]+)")[1])


#: Says what its own name, its peers' and another lead to, and where the addresses lead back to; asyncio listens at its
#: own name, which must lead to addresses of one family.
NAMES = """
import asyncio, os, socket
for name in [socket.gethostname(), *(peer.partition("=")[0] for peer in os.environ["TESTBED_PEERS"].split(","))]:
    address = socket.gethostbyname(name)
    mapped = socket.getnameinfo(("::ffff:" + address, 0), socket.NI_NAMEREQD)[0]
    print("NAME", name, address, socket.gethostbyaddr(address)[0], mapped)
async def listen():
    server = await asyncio.start_server(print, socket.gethostname(), 0)
    print("NAME", *(each.getsockname()[0] for each in server.sockets))
asyncio.run(listen())
try:
    print("NAME", socket.gethostbyname("pypi.org"))
except OSError:
    print("REFUSED")
"""


@pytest.mark.system
@pytest.mark.parametrize("where", ["containers", "host"])
def test_a_worker_s_name_and_its_peers_lead_to_addresses_and_back(
    fjords: Standing, folder: Path, tmp_path: Path, where: str
) -> None:
    (folder / "names.py").write_text(NAMES)
    words = ["python", "names.py"] if where == "containers" else ["--", sys.executable, folder / "names.py"]
    options = ["--"] if where == "containers" else ["--on-host"]
    launching = Launching(tmp_path, "--name", fjords.name, "--workers", "bergen-w0,oslo-w0", *options, *words)
    code, said = launching.end()
    assert code == 0, said
    addresses = {name: host["address"] for name, host in fjords.status()["hosts"].items() if host["kind"] == "worker"}
    for own in addresses:
        lines = (tmp_path / f"runs/latest/logs/{own}.log").read_text().splitlines()
        assert lines[-1] == "REFUSED"
        assert lines[-2] == f"NAME {addresses[own]}"
        assert lines[:-2] == [f"NAME {name} {addresses[name]} {name} {name}." for name in (own, "bergen-w0", "oslo-w0")]


#: Starts a daemon that has no environment but the given variables, and ends.
ORPHAN = """
import os, sys
if os.fork():
    os.wait()
elif os.setsid() and not os.fork():
    os.execve("/bin/sleep", ["sleep", sys.argv[1]], dict(each.split("=") for each in sys.argv[2:]))
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("where", "variables"), [("containers", []), ("containers", ["TESTBED_LAUNCH=another"]), ("host", [])]
)
def test_a_daemon_without_the_launch_s_label_ends_with_it(
    fjords: Standing, folder: Path, tmp_path: Path, where: str, variables: list[str]
) -> None:
    """In containers that stay up, too."""
    (folder / "orphan.py").write_text(ORPHAN)
    seconds = f"7{os.getpid()}"
    words = ["python", "orphan.py"] if where == "containers" else [sys.executable, str(folder / "orphan.py")]
    options = [] if where == "containers" else ["--on-host"]
    launching = Launching(tmp_path, "--name", fjords.name, *options, "--", *words, seconds, *variables)
    code, said = launching.end()
    assert code == 0, said
    found = subprocess.run(["pgrep", "-f", f"sleep {seconds}"], capture_output=True, text=True).stdout
    assert found == ""


@pytest.mark.physics
def test_a_ddp_script_trains_over_the_network_and_its_steps_follow_a_link(fjords: Standing, tmp_path: Path) -> None:
    launching = Launching(tmp_path, "--name", fjords.name, "--", "python", "ddp.py", "--steps", "1000")
    least_s = GRADIENT_BYTES * 8 / 4e6
    until(lambda: step_s(launching) < least_s)
    fjords.verb("link", "oslo->bergen", "--rate", "4mbit")
    # Lines of before are still on their way, of slow steps among them.
    until(lambda: step_s(launching) >= 0.9 * least_s and launching.nothing_waits)
    # A step ends with what was received, and what was sent may still wait in the link's queue: one is short by the
    # next one's wait, so it is the mean that follows.
    assert sum(step_s(launching) for _ in range(3)) / 3 >= 0.8 * least_s
    fjords.verb("link", "oslo->bergen", "--rate", "50mbit")
    launching.process.send_signal(signal.SIGINT)
    code, _ = launching.end()
    assert code == 130
    assert launching.programs == []

    run = tmp_path / "runs/latest"
    assert "step=0" in (run / "logs/oslo-w0.log").read_text()
    rates = [json.loads(line)["rate_bps"] for line in (run / "links.jsonl").read_text().splitlines()]
    assert {50e6, 4e6} <= set(rates)
    traffic = [json.loads(line)["bytes"] for line in (run / "traffic.jsonl").read_text().splitlines()]
    assert traffic[-1]["oslo->bergen"] - traffic[0]["oslo->bergen"] > 5 * GRADIENT_BYTES
    assert launching.summary()["reasons"] == ["the run was interrupted"]
    changes = [("change", "oslo->bergen")] * 2
    by_hand = json.loads((run / "manifest.json").read_text())["by_hand"]
    assert [(event["kind"], event["target"]) for event in by_hand] == changes


@pytest.mark.system
def test_an_unchanged_script_goes_by_plans_also_over_a_link_that_was_away(fjords: Standing, tmp_path: Path) -> None:
    """The network stays up; the controller ends with the launch, and another launch may follow."""
    steps = 30
    network = client(fjords.name)
    # A step takes 0.26 s at 16 Mbit/s: 7 s are left after the third, for a busy host to come to cut the link in.
    network.change_link("oslo->bergen", {"rate": "16mbit"})
    words = ("--name", fjords.name, "--backend", "wan", "--", "python", "ddp.py", "--steps", str(steps))
    launching = Launching(tmp_path, *words)
    launching.line(r"oslo-w0   \| .*init_process_group takes wan in the place of gloo")
    launching.line(r"oslo-w0   \| step=3 ")
    # Without a command's start, in which a quick host would make all the steps.
    network.change_link("oslo->bergen", {"up": False})
    time.sleep(2 * AWAY_S)  # the step that waits may have begun a while after the cut
    network.change_link("oslo->bergen", {"up": True})
    said = [launching.line(rf"oslo-w0   \| step={step} .* step_seconds=([\d.]+)") for step in range(4, steps)]
    assert max(float(line[1]) for line in said) >= AWAY_S
    code, last = launching.end()
    assert code == 0
    kinds = [event["kind"] for event in launching.summary()["events"]]
    assert kinds == ["down", "up"]
    run = tmp_path / "runs/latest"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["spec"]["train"]["backend"] == "wan"
    assert manifest["environments"]["bergen-w0"]["TESTBED_MEMBER"] == "bergen-w0"
    planned = launching.summary()["wan"]
    assert (planned["state"], planned["joined"]) == ("done", ["bergen-w0", "oslo-w0"])
    reports = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert {report["member"] for report in reports} == {"oslo-w0", "bergen-w0"}
    assert planned["round"] == launching.summary()["training"]["rounds"] == steps
    assert f"{steps} rounds by plans" in last
    assert 0 in RunRecord.read(run).plans
    assert not list(label.state_folder(fjords.name).glob("controller.json"))
    network.change_link("oslo->bergen", {"rate": "50mbit"})


@pytest.mark.system
def test_a_launch_that_used_no_link_or_made_no_round_is_suspect(fjords: Standing, tmp_path: Path) -> None:
    alone = "import os, socket; socket.create_server(('localhost', 5000)); print('alone')"
    launching = Launching(tmp_path, "--name", fjords.name, "--", "python", "-c", alone)
    code, said = launching.end()
    assert code == 0
    assert "verdict: suspect" in said
    summary = launching.summary()
    assert summary["sync"]["wan_bytes"] == 0
    assert any(reason.startswith("no link was used, so nothing was emulated") for reason in summary["reasons"])

    scheme = ("--name", fjords.name, "--scheme", "diloco:every=32", "--", "python", "ddp.py", "--steps", "13")
    launching = Launching(tmp_path, *scheme)
    code, said = launching.end()
    assert code == 0
    summary = launching.summary()
    assert summary["sync"]["wan_bytes"] > 0
    assert any(reason.startswith("scheme diloco:every=32: 0 rounds") for reason in summary["reasons"]), said


@pytest.mark.system
def test_torchrun_is_an_agent_on_each_worker_also_behind_a_shell_and_objects_are_gathered(
    fjords: Standing, folder: Path, tmp_path: Path
) -> None:
    (folder / "gather.py").write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "found = [None] * dist.get_world_size()\n"
        "dist.all_gather_object(found, (dist.get_rank(), os.environ['LOCAL_RANK'], os.environ['TESTBED_WORKER']))\n"
        "if dist.get_rank() == 0: print('found', found)\n"
        "dist.destroy_process_group()\n"
    )
    behind = ("bash", "-c", "cd /work && torchrun gather.py")
    launching = Launching(tmp_path, "--name", fjords.name, "--nproc", "2", "--", *behind)
    each = [(local, worker) for worker in ("oslo-w0", "bergen-w0") for local in ("0", "1")]
    assert launching.line(r"found (.*)")[1] == str([(rank, *where) for rank, where in enumerate(each)])
    assert launching.end()[0] == 0
    assert launching.summary()["exit_codes"] == {"oslo-w0": 0, "bergen-w0": 0}


@pytest.mark.tour
@pytest.mark.system
def test_what_goes_wrong_is_named_and_nothing_stays(fjords: Standing, folder: Path, tmp_path: Path) -> None:
    failing = Launching(tmp_path, "--name", fjords.name, "--", "python", "imports.py")
    failing.line("Traceback")
    code, said = failing.end()
    assert code == 1
    assert re.search(r"failed: \w+-w0 ended with exit code 1; what it said ends with:\nTraceback", said), said
    assert failing.programs == []

    killed = Launching(tmp_path, "--name", fjords.name, "--on-host", "--", sys.executable, folder / "dies.py")
    code, said = killed.end()
    assert code == 1
    assert "failed: bergen-w0 was ended by signal 9" in said
    assert killed.summary()["exit_codes"] == {"oslo-w0": None, "bergen-w0": 137}
    assert killed.programs == []


@pytest.mark.system
def test_what_ended_a_program_is_named_a_limit_on_memory_too(folder: Path, tmp_path: Path) -> None:
    """Also where it has ended one that the program had started; and no other failure after it."""
    sites = {"oslo": {"workers": 1, "memory": "150MB"}, "bergen": 1}
    file = write(folder, "small", sites, ("oslo", "bergen", "50mbit", "5ms"))
    hog = "x = bytearray(10**9); print(len(x))"
    with up(file, f"{MARK}-small") as small:
        for code, words in {
            137: ["python", "-c", hog],
            3: ["python", "-c", f"import subprocess, sys; subprocess.run(['python', '-c', '{hog}']); sys.exit(3)"],
        }.items():
            launching = Launching(tmp_path, "--name", small.name, "--workers", "oslo-w0", "--", *words)
            limit = launching.line(r"failed: oslo-w0 ended with exit code (\d+), out of memory: .* limit is (\w+)")
            assert limit.groups() == (str(code), "150MB")
            assert launching.end()[0] == 1
        # Kernels before 6.15 do not tell one from the other.
        either = r"ended with exit code 137, as after signal 9 \(SIGKILL\)"
        for script, how in {
            "exit 255": "ended with exit code 255",
            "exit 137": f"(ended with exit code 137|{either})",
            "kill -9 $$": rf"(was ended by signal 9 \(SIGKILL\)|{either})",
        }.items():
            launching = Launching(tmp_path, "--name", small.name, "--workers", "oslo-w0", "--", "sh", "-c", script)
            launching.line(f"failed: oslo-w0 {how}; it had said nothing")


@pytest.mark.system
def test_a_launch_whose_controller_has_gone_fails_and_says_so(fjords: Standing, tmp_path: Path) -> None:
    launching = Launching(tmp_path, "--name", fjords.name, "--scheme", "local_sgd:every=4", "--", "python", "waits.py")
    launching.line("SAYS")
    (controller,) = controllers_of(fjords.name)
    os.kill(controller, signal.SIGKILL)
    code, said = launching.end()
    assert code == 1
    assert "the controller was ended by signal 9" in said
    summary = launching.summary()
    assert (summary["training"]["wall_seconds"], summary["scheme"]["state"]) == (None, "failed")
    assert "signal 9" in summary["scheme"]["failure"]


def controllers_of(network: str) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended
            words = file.read_bytes()
            if b"testbed.controller" in words and f"/{network}/".encode() in words:
                found.append(int(file.parent.name))
    return found


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


#: Leaves in /out what is to be taken, what is not, and what is called larger than it can be; and changes its folder.
LEAVES = """
import os
print("found", sorted(os.listdir()), "notes", open("notes.txt").read(), "below", os.listdir("sub"))
open("notes.txt", "a").write(" and " + os.environ["TESTBED_WORKER"])
open("checkpoint.pt", "w").write("new")
open("sub/deep.txt", "w").write("new")
os.remove("gone.txt")
try:
    open("large", "wb").write(bytes(8 << 20))
except OSError as error:
    print("bounded:", error.strerror)
    os.remove("large")
os.chdir("/out")
sizes = {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize >> 20 for path in ("/tmp", "/dev/shm", "/out")}
print("room", sizes, "files", os.access("/work", os.W_OK), "root", os.access("/", os.W_OK))
os.makedirs("a/b")
with open("a/b/kept.txt", "w") as file:
    file.write(os.environ["TESTBED_WORKER"])
os.symlink("/etc/passwd", "link")
os.symlink("/etc", "folder")
os.mkfifo("pipe")
with open("z", "wb") as file:
    file.truncate(1 << 50)
"""


@pytest.mark.system
def test_what_is_left_is_taken_and_no_more_and_a_folder_that_programs_change_stays_as_it_was(
    fjords: Standing, folder: Path, tmp_path: Path
) -> None:
    (folder / "leaves.py").write_text(LEAVES)
    (folder / "sub").mkdir()
    for name in ("notes.txt", "gone.txt"):
        (folder / name).write_text("old")
    for path in (folder, folder / "sub", folder / "notes.txt"):  # an owner that this machine does not know
        os.chown(path, 4321, 4321)
    before = names_in(folder)
    for _ in range(2):  # what the first left is not in the way of the second
        launching = Launching(tmp_path, "--name", fjords.name, "--", "python", "leaves.py")
        assert launching.line("found (.*)")[1] == f"{before} notes old below []"
        assert launching.line("bounded: (.*)")[1] == os.strerror(errno.ENOSPC)
        room = {"/tmp": 8, "/dev/shm": 16, "/out": 4}
        assert launching.line(r"room (.*)")[1] == f"{room} files True root False"
        launching.line("8 files that the programs made or changed")
        assert launching.end()[0] == 0
    out = tmp_path / "runs/latest/out"
    assert {worker.name: (worker / "a/b/kept.txt").read_text() for worker in out.iterdir()} == {
        name: name for name in ("oslo-w0", "bergen-w0")
    }
    assert sorted(path.name for path in (out / "oslo-w0").iterdir()) == ["a", "checkpoint.pt", "notes.txt", "sub"]
    assert (out / "oslo-w0/notes.txt").read_text() == "old and oslo-w0"
    assert (names_in(folder), names_in(folder / "sub")) == (before, [])
    assert (folder / "notes.txt").read_text() == "old"
    assert "/work" not in [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kept = json.loads((tmp_path / "runs/latest/summary.json").read_text())["kept"]["oslo-w0"]
    assert kept["files"] == 4
    assert [name.split()[0] for name in kept["left_out"]].count("z") == 1


#: Leaves a file in both places, waits for another program's, and then leaves one more.
SHARES = """
import pathlib, sys, time
own, other = sys.argv[1:]
for place in ("/work", "/out"):
    pathlib.Path(place, own).write_text(own)
print("LEFT", flush=True)
while not pathlib.Path("/out", other).exists():
    time.sleep(0.1)
pathlib.Path("/work", own + "-later").write_text(own)
"""


@pytest.mark.system
def test_launches_at_the_same_time_share_files_and_take_none_away(
    fjords: Standing, folder: Path, tmp_path: Path
) -> None:
    (folder / "shares.py").write_text(SHARES)

    def launch(own: str, other: str) -> Launching:
        (tmp_path / own).mkdir()
        words = ("--name", fjords.name, "--workers", "oslo-w0", "--", "python", "shares.py", own, other)
        return Launching(tmp_path / own, *words)

    first = launch("one", "two")
    first.line("LEFT")
    second = launch("two", "one")
    assert [first.end()[0], second.end()[0]] == [0, 0]
    left = tmp_path / "one/runs/latest/out/oslo-w0"
    assert all((left / name).read_text() == "one" for name in ("one", "work/one", "one-later"))


@pytest.mark.system
def test_what_a_killed_launch_left_is_gone_when_the_next_begins(fjords: Standing, tmp_path: Path) -> None:
    words = ("--name", fjords.name, "--workers", "oslo-w0", "--")
    killed = Launching(tmp_path, *words, "sh", "-c", ": > /out/left; : > /work/left; echo LEFT; exec sleep 600")
    killed.line(r"\| LEFT")
    launch = (tmp_path / "runs/latest").resolve().name
    killed.process.kill()
    killed.end()
    assert killed.programs, "its programs run on"
    looks = "import os; print('LEFT', *(os.path.exists(f'{place}/left') for place in ('/out', '/work')))"
    following = Launching(tmp_path, *words, "python", "-c", looks)
    assert following.line(r"\| LEFT (.*)")[1] == "False False"
    assert following.end()[0] == 0
    assert not list(label.processes(launch, label.LAUNCH))


#: Makes a chain of folders in both places.
DEEP = """
import os
for place in ("/out", "/work"):
    os.chdir(place)
    for _ in range(2000):
        os.mkdir("d")
        os.chdir("d")
"""


@pytest.mark.system
def test_chains_of_folders_break_no_launch(fjords: Standing, folder: Path, tmp_path: Path) -> None:
    (folder / "deep.py").write_text(DEEP)
    for _ in range(2):  # the first one's are gone when the second begins
        launching = Launching(tmp_path, "--name", fjords.name, "--workers", "oslo-w0", "--", "python", "deep.py")
        code, said = launching.end()
        assert code == 0, said
    left_out = launching.summary()["kept"]["oslo-w0"]["left_out"]
    assert [name.rpartition(" (")[2] for name in left_out] == ["too deep)"] * 2


#: What torch.compile, cpp_extension, Numba and cffi do: put a library into a temporary folder, and load it.
LOADS = """
import ctypes, shutil, sys, tempfile
from pathlib import Path
library = Path(tempfile.mkdtemp(dir=sys.argv[1] if sys.argv[1:] else None)) / "x.so"
shutil.copy(next(Path("/lib").glob("*/libm.so.6")), library)
ctypes.CDLL(str(library))
print("loaded from", library)
"""


@pytest.mark.system
def test_compiled_code_is_loaded_from_two_places_and_elsewhere_one_is_named(
    fjords: Standing, folder: Path, tmp_path: Path
) -> None:
    (folder / "loads.py").write_text(LOADS)
    words = ("--name", fjords.name, "--workers", "oslo-w0", "--", "python", "loads.py")
    for place in ("/tmp", "/work"):
        launching = Launching(tmp_path, *words, place)
        launching.line(f"loaded from {place}/")
        assert launching.end()[0] == 0
    for place in ("/out", "/dev/shm"):
        launching = Launching(tmp_path, *words, place)
        launching.line("failed: oslo-w0 ended with exit code 1")
        launching.line("hold no programs or libraries .* /tmp or /work, which do")
        assert launching.end()[0] == 1


@pytest.mark.system
def test_a_border_of_a_container_is_said_where_a_command_runs_into_it(
    fjords: Standing, folder: Path, tmp_path: Path
) -> None:
    (folder / "says.py").write_text("print('it is', __file__)")
    (folder / "windows.sh").write_text("#!/bin/sh\necho hello\n", newline="\r\n")
    (folder / "windows.sh").chmod(0o755)
    (tmp_path / "says.py").write_text("print('never')")
    words = ("--name", fjords.name, "--workers", "oslo-w0", "--")
    inside = Launching(tmp_path, *words, "python", folder / "says.py")
    inside.line("it is /work/says.py")
    assert inside.end()[0] == 0
    for command_, code, said in (
        (
            ["python", str(tmp_path / "says.py")],
            1,
            rf"{tmp_path}/says.py is on this machine; .* see only {folder}, as /work",
        ),
        ([str(tmp_path / "says.py")], 2, rf"{tmp_path}/says.py is on this machine; .* see only {folder}, as /work"),
        (["./windows.sh"], 1, r"CRLF.*sed -i 's/\\r\$//' ./windows.sh"),
    ):
        launching = Launching(tmp_path, *words, *command_)
        launching.line(said)
        assert launching.end()[0] == code


#: An image without even a shell, that would have a folder on the host's disk.
DOCKERFILE = "FROM scratch\nCOPY stranger /stranger\nVOLUME /data/\nUSER root\n"
STRANGER = """
#include <stdio.h>
#include <unistd.h>
#include <sys/vfs.h>
int main(void) {
    struct statfs data;
    statfs("/data", &data);
    long room = data.f_blocks * data.f_bsize >> 20;
    printf("user %d, data of %ld MiB, root %d\\n", getuid(), room, access("/", W_OK));
    return 0;
}
"""


@pytest.mark.system
def test_an_image_of_somebody_else_has_the_same_restrictions(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "stranger.c").write_text(STRANGER)
    subprocess.run(["cc", "-static", "-o", tmp_path / "stranger", tmp_path / "stranger.c"], check=True)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    tmp_path.chmod(0o755)
    try:
        launching = Launching(tmp_path, pair, "--image", "Dockerfile", "--tmp", "8MiB", "--", "/stranger")
        assert launching.line(r"oslo-w0   \| (.*)")[1] == "user 10001, data of 8 MiB, root -1"
        assert launching.end()[0] == 0
    finally:
        made = hash_of([str((tmp_path / "Dockerfile").resolve())])
        docker.from_env().images.remove(f"testbed-dockerfile:{made}")
    assert left_of((tmp_path / "runs/latest").resolve().name) == []


@pytest.mark.tour
@pytest.mark.system
def test_ctrl_c_ends_programs_in_containers(fjords: Standing, tmp_path: Path) -> None:
    for word in ("launch", "SAYS 0"):
        launching = Launching(
            tmp_path, "--name", fjords.name, "--workers", "bergen-w0,oslo-w0", "--", "python", "waits.py"
        )
        launching.line(word)
        launching.process.send_signal(signal.SIGINT)
        assert launching.end()[0] == 130
        assert launching.programs == []


@pytest.mark.tour
@pytest.mark.system
def test_a_network_of_its_own_goes_with_it(pair: Path, folder: Path) -> None:
    words = ("--on-host", "--nproc", "2", "--port", "0", "--", sys.executable, "waits.py")
    launching = Launching(folder, pair, *words)
    assert Path(launching.line(r"page: (\S+);")[1]).is_file()
    launching.line(r"bergen-w0\.1 \| SAYS 3")
    assert len(launching.programs) == 4
    run = (folder / "runs/latest").resolve().name
    assert client(run).status()["kind"] == "run"
    launching.process.send_signal(signal.SIGTERM)
    assert launching.end()[0] == 130
    assert launching.programs == []
    assert left_of(run) == []
    assert "was interrupted" in (folder / "runs/latest/report.html").read_text()


#: Prints two losses, and sends something over the network.
LEARNS = """
import os, socket, time
addresses = [peer.partition("=")[2] for peer in os.environ["TESTBED_PEERS"].split(",")]
if os.environ["RANK"] == "0":
    listener = socket.create_server(("", 5000))
    listener.accept()[0].recv(1 << 20)
else:
    while True:
        try:
            socket.create_connection((addresses[0], 5000)).sendall(bytes(10_000))
            break
        except OSError:
            time.sleep(0.1)
for step in range(2):
    print(f"step={step} loss={2 - step}")
"""


@pytest.mark.system
@pytest.mark.parametrize("where", ["its own", "up"])
def test_a_launch_is_a_run_with_a_verdict_curves_and_a_report(
    fjords: Standing, pair: Path, folder: Path, tmp_path: Path, where: str
) -> None:
    (folder / "learns.py").write_text(LEARNS)
    network = [pair, "--files", folder] if where == "its own" else ["--name", fjords.name]
    launching = Launching(tmp_path, *network, "--", "python", "learns.py")
    code, said = launching.end()
    assert code == 0, said
    assert "verdict: " in said
    run = tmp_path / "runs/latest"
    summary = launching.summary()
    assert summary["verdict"] in ("trusted", "suspect")
    assert not any("no link was used" in reason for reason in summary["reasons"])
    assert (summary["links"]["oslo->bergen"]["rtt_error_ms"] is None) == (where == "up")
    assert any("measured on a new network only" in what for what in summary["not_judged"]) == (where == "up")
    assert (run / "report.html").is_file()
    assert RunRecord.read(run).curves["loss"]["oslo-w0"][1] == [2.0, 1.0]
    (listed,) = past_runs(tmp_path / "runs")
    assert listed.state == summary["verdict"]
    if where == "up":
        name = run.resolve().name
        events = [event for event in client(fjords.name).events() if name in event["target"]]
        told = [(event["kind"], event["target"], event["by"]) for event in events]
        assert told == [
            ("launch", f"{name} on 2 workers: python learns.py", None),
            ("launch ended", name, None),
        ]
        assert not (run / "events.jsonl").exists()


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([], "-- python train.py"),
        (["pair.yaml", "--name", "pair", "--", "true"], "one of them"),
        (["--image", "other:1", "--", "true"], "TOPOLOGY, or these options of `testbed network up"),
        (["smoke", "--on-host", "--files", ".", "--", "true"], "these options or --on-host"),
        (["smoke", "--on-host", "--out", "1GiB", "--", "true"], "these options or --on-host"),
        (["--port", "0", "--", "true"], "--open"),
        (["smoke", "--workers", "", "--", "true"], "--workers: "),
        (["smoke", "--scheme", "", "--", "true"], "--scheme: "),
    ],
)
def test_a_line_that_cannot_be_is_refused(words: list[str], remedy: str) -> None:
    done = CliRunner().invoke(app, ["launch", *words])
    assert done.exit_code == 2
    assert remedy in done.output


@pytest.mark.local
@pytest.mark.parametrize(
    ("line", "executes"), [("run smoke", "execute"), ("launch smoke -- true", "execute_experiment")]
)
@pytest.mark.parametrize(("page", "code"), [(Path("report.html"), 0), (None, FAILED)])
def test_a_run_or_launch_without_its_report_has_failed(
    line: str, executes: str, page: Path | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(f"testbed.run.execute.{executes}", lambda *_: Executed(True, "trusted", tmp_path, page))
    assert CliRunner().invoke(app, line.split()).exit_code == code


@pytest.mark.system
def test_what_cannot_be_is_refused(fjords: Standing, pair: Path, tmp_path: Path) -> None:
    launching = Launching(tmp_path, pair, "--", "python", "waits.py")
    assert "chmod o+rx" in launching.end()[1]
    tmp_path.chmod(0o755)
    launching = Launching(tmp_path, pair, "--image", "no-such-image:1", "--", "python")
    assert "`docker pull no-such-image:1`" in launching.end()[1]
    for words, remedy in (
        (["--workers", "rome-w0", "--", "python"], "some of oslo-w0, bergen-w0"),
        (["--", "no-such-program"], "a program that its image has"),
        (["--backend", "wan", "--nproc", "2", "--", "python"], "1, or no `backend`"),
    ):
        launching = Launching(tmp_path, "--name", fjords.name, *words)
        code, said = launching.end()
        assert (code, remedy in said) == (2, True), said
