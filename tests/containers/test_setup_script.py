"""setup.sh names problems with remedies, and gives files back; .ci/run tells a pass from nothing tested."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from testbed.emulation.containers import requirements
from testbed.emulation.containers.requirements import ROOT
from tests.waiting import PATIENCE_S, until

SOMEBODY = 54321


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "setup.sh", tmp_path)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    return tmp_path


@pytest.mark.system
def test_without_root_it_says_to_use_sudo() -> None:
    script = (ROOT / "setup.sh").read_text()  # the checkout need not be readable to that user
    done = run(["setpriv", "--reuid", str(SOMEBODY), "bash", "-c", script, "/setup.sh"], Path("/"))
    assert done.returncode == 3
    assert "sudo" in done.stderr


@pytest.mark.local
@pytest.mark.parametrize("words", [["nothing"], ["docs", "browser"]])
def test_unknown_words_and_two_at_a_time_are_refused(checkout: Path, words: list[str]) -> None:
    done = run([f"{checkout.name}/setup.sh", *words], checkout.parent)
    assert done.returncode == 2
    assert "./setup.sh docs " in done.stderr


@pytest.fixture
def checkout_with_lock(checkout: Path) -> Path:
    """Return a checkout with the inputs of the Python environment, and no index for pip."""
    locked = "testbed/emulation/containers/requirements.py"
    for name in ("pyproject.toml", "requirements.lock", "testbed/__init__.py", "testbed/resources.py", locked):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    return checkout


@pytest.mark.system
def test_a_folder_that_cannot_be_written_is_named(checkout: Path) -> None:
    (checkout / "build").touch()
    done = run(["./setup.sh"], checkout)
    assert done.returncode == 3
    assert "build can't be written" in done.stderr


@pytest.mark.system
@pytest.mark.parametrize("there", [["dpkg-query"], ["apt-get"]])
def test_another_distribution_is_told_before_anything_else(checkout: Path, there: list[str]) -> None:
    """A machine of another distribution may have dpkg."""
    folder = checkout / "programs"
    folder.mkdir()
    for name in ("dirname", "id", "stat", "find"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name in there:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    script = (checkout / "setup.sh").read_text().replace("PATH=$PATH:", "#")
    done = run([str(shutil.which("bash")), "-c", script, "./setup.sh"], checkout, PATH=str(folder))
    assert done.returncode == 3
    assert "There is no apt-get here" in done.stderr


@pytest.mark.local
@pytest.mark.parametrize(("statuses", "new"), [("1 1", False), ("1 0", True), ("0", True)])
def test_one_new_python_is_enough(checkout: Path, statuses: str, new: bool) -> None:
    programs = {f"python-{number}": f"exit {status}" for number, status in enumerate(statuses.split())}
    assert (call(checkout, f"has_new_python {' '.join(programs)}", **programs).returncode == 0) == new


@pytest.mark.local
def test_a_full_disk_is_told_instead_of_the_remedy(checkout: Path) -> None:
    (checkout / "build").mkdir()
    done = call(checkout, "step title remedy false", df="echo 12")
    assert done.returncode == 3
    assert "is full" in done.stderr and "remedy" not in done.stderr
    done = call(checkout, "step title remedy false", df="echo 20000")
    assert "remedy" in done.stderr


@pytest.mark.system
def test_a_step_that_fails_is_quoted_with_its_remedy_and_done_again(checkout_with_lock: Path) -> None:
    done = run(["./setup.sh"], checkout_with_lock, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(checkout_with_lock))
    assert done.returncode == 3
    assert "Python environment .venv" in done.stdout
    assert "failed after" in done.stdout
    assert "pip config list" in done.stderr
    assert not (checkout_with_lock / ".venv" / "inputs").exists(), "the next run would take it for made"


@pytest.mark.system
def test_a_file_of_another_hash_is_refused_by_name_with_what_to_do(checkout_with_lock: Path) -> None:
    version = requirements.read()["pip"].version
    forged = checkout_with_lock / f"pip-{version}-py3-none-any.whl"
    forged.write_bytes(b"not what the lock was made from")
    done = run(["./setup.sh"], checkout_with_lock, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(checkout_with_lock))
    assert done.returncode == 3
    assert "DO NOT MATCH THE HASHES" in done.stdout
    assert f"pip=={version}" in done.stdout
    assert hashlib.sha256(forged.read_bytes()).hexdigest() in done.stdout
    assert requirements.read()["pip"].hashes[0] not in done.stdout
    assert "make update" in done.stderr
    assert not (checkout_with_lock / ".venv" / "inputs").exists()


def path_with(checkout: Path, **programs: str) -> str:
    """Return a PATH on which these scripts are in place of programs."""
    folder = checkout / "programs"
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def call(checkout: Path, words: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a function of setup.sh, with these scripts in place of programs."""
    functions = (ROOT / "setup.sh").read_text().partition("# --- the steps")[0]
    command = ["bash", "-c", f"{functions}\n{words}", str(checkout / "setup.sh")]
    return run(command, checkout, PATH=path_with(checkout, **programs))


LISTS_ARE_LOCKED = """\
echo "$*" >>called
[ "$(wc -l <called)" -gt 2 ] || { echo 'E: Could not get lock /var/lib/apt/lists/lock.' >&2; exit 100; }"""


@pytest.mark.local
def test_packages_are_installed_once_another_process_has_updated_apt_s_lists(checkout: Path) -> None:
    programs = {"apt-get": LISTS_ARE_LOCKED, "sleep": "echo slept >>called.sleep"}
    assert call(checkout, "install_packages some", **programs).returncode == 0
    *updates, install = (checkout / "called").read_text().splitlines()
    assert updates == ["update"] * 3
    assert "install" in install.split() and install.endswith(" some")
    assert (checkout / "called.sleep").read_text().split() == ["slept"] * 2


@pytest.mark.local
def test_another_failure_of_apt_is_not_waited_for(checkout: Path) -> None:
    done = call(checkout, "install_packages some", **{"apt-get": "echo 'E: no such source' >&2; exit 100", "sleep": ""})
    assert done.returncode != 0
    assert "no such source" in done.stdout


@pytest.mark.local
def test_a_package_that_is_not_unpacked_to_its_end_is_not_taken_for_whole(checkout: Path) -> None:
    unpack = "mkdir -p usr && touch usr/program"
    programs = {"apt-get": '[ "$1" = update ] || touch "$2_1.deb"', "dpkg": f"{unpack}; exit 2"}
    folder = checkout / "build" / "some"
    assert call(checkout, "unpack some build/some", **programs).returncode != 0
    assert not folder.exists()
    assert call(checkout, "unpack some build/some", **{**programs, "dpkg": f"[ $# = 3 ] && {unpack}"}).returncode == 0
    assert (folder / "usr" / "program").exists()


@pytest.mark.system
def test_of_two_at_a_time_one_waits_for_the_other(checkout: Path) -> None:
    path = path_with(checkout, **{"dpkg-query": "touch asked", "apt-get": "exit 100"})
    (checkout / "build").mkdir()
    with (checkout / "build" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**os.environ, "PATH": path}
        made = subprocess.Popen(["./setup.sh"], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
        first = made.stdout.readline()
        early = (checkout / "asked").exists()
    with made:
        assert made.wait(PATIENCE_S) == 3
    assert "waiting" in first and not early
    assert (checkout / "asked").exists()


@pytest.mark.system
def test_files_go_back_to_the_user_behind_sudo(checkout: Path) -> None:
    (checkout / "build").mkdir()
    (checkout / "build" / "file").touch()
    (checkout / "build" / "link").symlink_to("/etc/hostname")
    (checkout / "theirs").touch()
    (checkout / ".git").mkdir()
    os.chown(checkout / "theirs", SOMEBODY + 1, SOMEBODY + 1)
    os.chown(checkout, SOMEBODY, SOMEBODY)
    give_back = ["./setup.sh", "give-back"]
    assert run(give_back, checkout, SUDO_UID=str(SOMEBODY), SUDO_GID=str(SOMEBODY)).returncode == 0
    owners = {path.name: path.lstat().st_uid for path in checkout.rglob("*")}
    assert owners["build"] == owners["file"] == owners["link"] == SOMEBODY
    assert owners["theirs"] == SOMEBODY + 1
    assert owners[".git"] == 0
    assert Path("/etc/hostname").stat().st_uid == 0


@pytest.mark.system
def test_a_checkout_of_somebody_else_keeps_its_owner(checkout: Path) -> None:
    assert run(["./setup.sh", "give-back"], checkout, SUDO_UID=str(SOMEBODY), SUDO_GID=str(SOMEBODY)).returncode == 0
    assert {path.stat().st_uid for path in checkout.rglob("*")} == {0}


@pytest.mark.local
def test_files_go_back_also_after_an_interrupt(checkout: Path) -> None:
    """Ctrl-C reaches make, its shell and the program at once."""
    shutil.copy(ROOT / "Makefile", checkout)
    (checkout / "setup.sh").write_text('#!/bin/sh\n[ "$1" != give-back ] || touch given-back\n')
    program = checkout / ".venv" / "bin" / "testbed"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\ntouch runs\nexec sleep 600\n")
    program.chmod(0o755)
    # What a shell starts in the background ignores interrupts, and so would what that starts.
    command = ["env", "--default-signal=INT", "make", "emulate"]
    with subprocess.Popen(command, cwd=checkout, start_new_session=True, stderr=subprocess.PIPE) as made:
        until((checkout / "runs").exists)
        assert not (checkout / "given-back").exists()
        os.killpg(made.pid, signal.SIGINT)
        assert made.wait(PATIENCE_S) != 0
    assert (checkout / "given-back").exists()


@pytest.mark.local
@pytest.mark.parametrize("known", [True, False])
def test_a_check_without_what_changed_runs_no_tests(checkout: Path, known: bool) -> None:
    """Without names pytest would run all."""
    shutil.copy(ROOT / "Makefile", checkout)
    (checkout / "setup.sh").write_text("#!/bin/sh\n")
    (checkout / ".venv" / "bin").mkdir(parents=True)
    changed = "echo tests/test_some.py" if known else "exit 2"
    python = f'case "$2" in tests.changed) {changed} ;; *) echo "$@" >tested ;; esac'
    for name, script in {"ruff": "", "mypy": "", "python": python}.items():
        (checkout / ".venv" / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (checkout / ".venv" / "bin" / name).chmod(0o755)
    done = run(["make", "check"], checkout, MAKEFLAGS="")
    assert (done.returncode == 0) == known
    assert (checkout / "tested").exists() == known
    assert not known or (checkout / "tested").read_text().endswith(" tests/test_some.py\n")


@pytest.mark.local
@pytest.mark.parametrize(
    ("recipe", "status", "last_line"),
    [
        ("echo '== 3 passed, 1 skipped in 0.51s =='; echo and then the guest", 0, "== 3 passed, 1 skipped in 0.51s =="),
        (
            "echo '== 1 failed, 3 passed in 61.20s (0:01:01) =='; false",
            2,
            "== 1 failed, 3 passed in 61.20s (0:01:01) ==",
        ),
        ("echo '== 4 skipped in 0.10s =='", 1, "== 4 skipped in 0.10s =="),
        ("echo '== 9 deselected, 0 passed in 0.10s =='", 1, "== 9 deselected, 0 passed in 0.10s =="),
        ("true", 1, "There is no summary of pytest: make test ended before it had one."),
        ("false", 2, "There is no summary of pytest: make test ended before it had one."),
    ],
)
def test_ci_passes_only_if_a_test_did(checkout: Path, recipe: str, status: int, last_line: str) -> None:
    done = continuous_integration(checkout, test=recipe)
    assert done.returncode == status
    assert done.stdout.splitlines()[-1] == last_line


@pytest.mark.local
@pytest.mark.parametrize("broken", ["setup", "test-page"])
def test_ci_fails_where_the_page_or_what_it_needs_does(checkout: Path, broken: str) -> None:
    recipes = {"test": "echo '== 3 passed in 0.51s =='"}
    assert continuous_integration(checkout, **recipes).returncode == 0
    assert continuous_integration(checkout, **recipes, **{broken: "echo it broke; false"}).returncode != 0


def continuous_integration(checkout: Path, **recipes: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run with these recipes for make's targets, and return the finished process. Other targets do nothing."""
    rules = {"setup": "true", "test": "true", "test-page": "true", **recipes}
    (checkout / "Makefile").write_text("".join(f"{target}:\n\t@{recipe}\n" for target, recipe in rules.items()))
    return run([".ci/run"], checkout, MAKEFLAGS="")
