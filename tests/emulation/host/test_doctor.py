"""The findings of `doctor`: each fault has a remedy, which `--fix` carries out.

What `--fix` does is tried on faults made for it, in namespaces for mounts and processes, with an engine of its own. The
networks, containers and processes of others on this machine would look like leftovers: the state folder that names
their owners is not in that mount namespace.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import docker
import pytest
from typer.testing import CliRunner

from testbed import compiler
from testbed.cli import CANNOT, app
from testbed.emulation import label
from testbed.emulation.containers import engine
from testbed.emulation.containers.image import INSTALL, ImageError
from testbed.emulation.host import budget, doctor, fixes
from testbed.emulation.host.doctor import Check, Finding
from testbed.emulation.interrupt import Interrupted
from testbed.errors import ending_of
from testbed.resources import SETUP
from testbed.resources import SHARE as ROOT


@pytest.fixture(autouse=True)
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "KEPT", tmp_path / "budget.json")


@pytest.mark.pure
def test_setup_installs_every_program_that_doctor_asks_for() -> None:
    packages = re.search(r"^PACKAGES=\((.*?)^\)", (ROOT / "setup.sh").read_text(), re.DOTALL | re.MULTILINE)
    assert packages
    installed = {word for line in packages[1].splitlines() for word in line.partition("#")[0].split()}
    essential = {"util-linux"}  # of Debian, which never lacks it
    assert {*doctor.PROGRAMS.values(), *doctor.IMAGE_PACKAGES, *compiler.PACKAGES.split()} - essential <= installed


@pytest.mark.local
def test_where_mininet_is_missing_doctor_and_not_an_import_says_so() -> None:
    """As beside an installed wheel before `testbed setup`."""
    program = """
import sys
import testbed.emulation
for name in [name for name in sys.modules if name.partition(".")[0] == "mininet"]:
    del sys.modules[name]
sys.modules["mininet"] = None
from testbed.emulation.host import doctor
doctor.find_mininet = lambda: False
print(doctor._mininet({}))
import testbed.emulation.network.network
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "apt-get install mininet" in done.stdout and "blocks=True" in done.stdout
    assert "ModuleNotFoundError" in done.stderr and "mininet" in done.stderr.splitlines()[-1]


@pytest.mark.pure
def test_a_missing_mininet_is_not_asked_of_pip() -> None:
    code, text = ending_of(ModuleNotFoundError("no", name="mininet.net"))
    assert code == CANNOT and SETUP in text and "pip" not in text


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.local
def test_an_engine_that_ends_during_the_check_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = docker.DockerClient(f"unix://{tmp_path / 'gone.sock'}", version="1.44")
    monkeypatch.setattr(engine, "connect", lambda: gone)
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path)
    monkeypatch.setattr(label, "processes", lambda: iter(()))  # those of other tests' networks
    looks = (doctor._engine, doctor._limits, doctor._gpus, doctor._leftovers)
    found = [look(doctor.Probes()).found for look in looks]
    assert found == ["no engine answers", *["unknown without a Docker engine"] * 2, "none"]


@pytest.mark.local
def test_an_engine_of_another_pid_namespace_blocks_and_is_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of the run that it would end."""

    def foreign(_: object) -> None:
        raise error

    error = engine.ForeignEngineError(None, None, "is that of Docker Desktop")
    for name in ("connect", "ensure_engine"):
        monkeypatch.setattr(engine, name, MagicMock())
    monkeypatch.setattr(engine, "check_namespace", foreign)
    found = doctor._engine(doctor.Probes())
    assert found.blocks and found.remedy == str(error)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(fixes.CannotFix, match="Docker Desktop"):
        fixes.start_engine()


@pytest.mark.tour
@pytest.mark.system
def test_a_machine_that_is_set_up_lacks_nothing() -> None:
    findings = doctor.examine()
    assert not [finding for finding in findings if finding.blocks]
    found = named(findings)
    assert {"root", "programs", "mininet", "Docker engine", "budget"} <= found.keys()
    taken = [finding.name.partition(":")[0] for finding in findings if "`auto` chooses" in finding.found]
    assert taken == ["shaping", "switch"]
    assert found["budget"].remedy


@pytest.mark.system
def test_json_holds_the_same_findings() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [each["name"] for each in told] == [finding.name for finding in doctor.examine()]
    keys = {"name", "ok", "found", "remedy", "blocks", "fixable", "fixed", "fix"}
    assert all(each.keys() == keys for each in told)
    assert all(each["ok"] is not bool(each["remedy"]) for each in told)


@pytest.mark.local
def test_without_root_it_says_to_use_sudo_and_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    findings = named(doctor.examine())
    assert findings["root"].blocks
    assert "sudo" in findings["root"].remedy
    assert all("needs root" in finding.remedy for name, finding in findings.items() if name.startswith("shaping"))
    assert "sudo" in findings["forwarding"].remedy, "no read-only /proc/sys keeps this user from forwarding"
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == CANNOT == 3
    assert next(each for each in json.loads(result.stdout) if each["name"] == "root")["blocks"]


@pytest.mark.local
def test_on_a_bare_machine_every_complaint_has_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No programs, no Mininet, no engine, no root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "find_mininet", lambda: False)
    monkeypatch.delenv("BASE_IMAGE", raising=False)
    findings = doctor.examine()
    blocking = [finding for finding in findings if finding.blocks]
    assert {"root", "programs", "mininet", "Docker engine", "worker image"} <= {finding.name for finding in blocking}
    assert all(finding.remedy for finding in blocking)
    packages = set(named(findings)["programs"].remedy.removeprefix("apt-get install ").split())
    assert packages == set(doctor.PROGRAMS.values())


@pytest.mark.pure
def test_a_wheel_without_the_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not doctor._python_packages(doctor.Probes()).blocks
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "23.0.1")  # as in Debian 12
    found = doctor._python_packages(doctor.Probes())
    assert found.blocks and found.found == "missing: pip 26 or later" and found.remedy == INSTALL
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else Mock())
    found = doctor._python_packages(doctor.Probes())
    assert found.blocks and found.found == "missing: sklearn"


@pytest.mark.pure
def test_an_engine_that_the_distribution_started_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(engine, "ensure_engine", lambda _: Mock())
    monkeypatch.setattr(engine, "check_namespace", lambda _: None)
    monkeypatch.setattr(engine, "own_engine", lambda: None)
    assert "log" not in fixes.start_engine()


@pytest.mark.local
def test_without_root_nothing_is_mended_and_each_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    findings = named(doctor.fix_all())
    assert not findings["root"].fixable
    assert findings["Docker engine"].fixable
    assert not findings["Docker engine"].fixed
    assert "sudo" in findings["Docker engine"].fix


@pytest.mark.pure
def test_a_fix_that_fails_says_why_whatever_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the worker image, in which a step's duration is measured, cannot be built."""

    def fail(_: str) -> None:
        raise ImageError("no room")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(budget, "measure_budget", fail)
    check = Check(lambda _: Finding("budget", "not measured", "measure it"), lambda: fixes.measure_budget("userspace"))
    assert doctor._attempt(check) == "no room"


@pytest.mark.local
def test_a_package_manager_is_not_ended_by_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As dpkg in the middle of a package, which would stay half installed."""

    class Interrupting(subprocess.Popen[str]):
        interrupted = False

        def communicate(self, *given: Any, **options: Any) -> tuple[str, str]:
            if not self.interrupted:
                self.interrupted = True
                raise Interrupted("SIGINT")
            (tmp_path / "go-on").write_text("\n")
            return super().communicate(*given, **options)

    os.mkfifo(tmp_path / "go-on")
    script = f'read line < "{tmp_path}/go-on"\ncut -d " " -f 6 "/proc/$$/stat" > "{tmp_path}/session"'
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(subprocess, "Popen", Interrupting)
    with pytest.raises(Interrupted):
        fixes.install(["iperf3"])
    assert int((tmp_path / "session").read_text()) != os.getsid(0), "the terminal's Ctrl-C would reach it"


@pytest.mark.local
def test_a_lock_of_apt_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the machine upgrades itself after its boot, while its first update is asked for."""
    (tmp_path / "apt-get").write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/asked
[ -e {tmp_path}/free ] || {{ touch {tmp_path}/free; echo "E: {fixes.LOCKED} /var/lib/apt/lists/lock."; exit 100; }}
""")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(fixes, "LOCK_LOOK_S", 0.0)
    fixes.install(["iperf3"])
    updated, again, installed = (tmp_path / "asked").read_text().splitlines()
    assert updated == again == "update" and "DPkg::Lock::Timeout=" in installed
    monkeypatch.setattr(fixes, "LOCK_S", -1.0)
    (tmp_path / "free").unlink()
    with pytest.raises(fixes.CannotFix):
        fixes.install(["iperf3"])


class Machine:
    """A machine to break: this one, with programs, state and engine of its own for what runs in it.

    Its `apt-get` writes down what it is asked for. Nothing that it starts sees this machine's networks and engine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        for directory in reversed(os.environ["PATH"].split(":")):
            for program in Path(directory).glob("*"):
                link = self.programs / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
        self.replace("apt-get", f'echo "$*" >> {folder}/asked')

    def replace(self, program: str, script: str) -> None:
        """Have a program do something else."""
        (self.programs / program).unlink(missing_ok=True)
        (self.programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / program).chmod(0o755)

    def doctor(self, before: str = "", after: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code and findings of `doctor --fix --json`, between two scripts."""
        script = f"""
            for each in /run/testbed /var/log /var/lib/testbed; do mkdir -p $each; mount -t tmpfs tmpfs $each; done
            {before}
            {sys.executable} -m testbed doctor --fix --json
            code=$?
            {after}
            exit $code
        """
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script],
            env={**os.environ, "PATH": str(self.programs), "DOCKER_HOST": f"unix://{self.folder}/sock"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.startswith("["), done.stderr
        return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}

    def asked(self) -> list[str]:
        """Return the arguments of each call of its apt-get."""
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def machine() -> Iterator[Machine]:
    """On a short path: an engine makes sockets below its own, whose names may not exceed 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tb") as folder:
        yield Machine(Path(folder))


@pytest.mark.system
def test_a_broken_machine_is_mended(machine: Machine) -> None:
    """No iperf3, a read-only /proc/sys, no engine, what a killed run left, no budget: afterwards all is well."""
    iperf3 = machine.programs / "iperf3"
    iperf3.unlink()
    machine.replace(
        "apt-get", f'echo "$*" >> {machine.folder}/asked; [ $1 = update ] || ln -s {shutil.which("iperf3")} {iperf3}'
    )
    options = " ".join(f"--{name}={machine.folder}/{name}" for name in ("data-root", "exec-root", "pidfile"))
    machine.replace("dockerd", f'exec unshare --net {shutil.which("dockerd")} {options} "$@"')
    code, findings = machine.doctor(
        before="""
            mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
            mkdir -p /run/testbed/networks/killed
        """,
        after=f"{sys.executable} -m testbed.emulation.containers.engine stop >&2",
    )
    assert code == 0, findings
    mended = ("programs", "forwarding", "Docker engine", "leftovers", "budget")
    assert {name: (findings[name]["ok"], findings[name]["fixed"]) for name in mended} == dict.fromkeys(
        mended, (True, True)
    ), findings
    assert machine.asked() == ["update", "install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 iperf3"]
    assert "killed" in findings["leftovers"]["fix"]
    assert not findings["root"]["fix"], "nothing was wrong with it"


@pytest.mark.system
def test_what_cannot_be_mended_says_why_and_ends_with_3(machine: Machine) -> None:
    (machine.programs / "iperf3").unlink()
    (machine.programs / "dockerd").unlink()
    machine.replace("apt-get", "echo no mirror answers; exit 100")
    code, findings = machine.doctor()
    assert code == CANNOT
    for name in ("programs", "Docker engine"):
        assert findings[name]["blocks"]
        assert findings[name]["fixable"]
        assert not findings[name]["fixed"]
        assert "ended with exit code 100: no mirror answers" in findings[name]["fix"]
    assert "fixed first" in findings["budget"]["fix"]


@pytest.mark.system
def test_a_path_without_the_administrator_s_folders_hides_no_program() -> None:
    """Root has such a PATH in a crontab, and after `su`."""
    environment = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = [sys.executable, "-m", "testbed", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["programs"]["ok"], found["programs"]
