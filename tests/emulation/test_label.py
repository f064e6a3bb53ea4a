from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial
from multiprocessing import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from testbed.emulation import label
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.daemon import bring_up
from testbed.emulation.network.names import Names
from testbed.emulation.network.namespace import Namespace, inside
from testbed.emulation.process import ProcessIdentity
from testbed.telemetry.store import write_json
from tests.waiting import PATIENCE_S, until


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test a state folder and a label of its own, so that it sees and ends no testbed that is up."""
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path)
    monkeypatch.setattr(label, "ENVIRONMENT", f"TESTBED_TEST_{os.getpid()}")


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*words, "sleep", "600"], stdin=subprocess.DEVNULL)


def record(network: str, value: object) -> None:
    label.state_folder(network).mkdir(parents=True)
    (label.state_folder(network) / "owner.json").write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.local
def test_what_is_started_inside_is_labelled_and_ended_by_its_label() -> None:
    before, others = sleeper(), []
    with label.labelled("one"):
        inside = sleeper()
    after = sleeper()
    with label.labelled("two"):
        others.append(sleeper("setsid"))
    try:
        until(lambda: {pid for pid, _ in label.processes()} == {inside.pid, others[0].pid})
        assert list(label.processes("one")) == [(inside.pid, "one")]
        assert label.kill_processes("one") == [inside.pid]
        assert inside.wait(PATIENCE_S) == -9
        assert [each.poll() for each in (before, after, *others)] == [None] * 3
        assert label.kill_processes() == [others[0].pid]
        assert others[0].wait(PATIENCE_S) == -9
        assert label.kill_processes() == []
    finally:
        for each in (before, inside, after, *others):
            each.kill()
            each.wait()


@pytest.mark.local
def test_an_empty_label_is_that_of_no_network() -> None:
    with subprocess.Popen(["sleep", "600"], env={label.ENVIRONMENT: ""}) as program:
        try:
            until(lambda: not label.is_loading(program.pid))
            assert list(label.processes()) == []
        finally:
            program.kill()


@pytest.mark.system
def test_a_testbed_in_a_container_has_networks_of_its_own(tmp_path: Path) -> None:
    script = f"mount -t tmpfs tmpfs {tmp_path}; echo ready; exec sleep 600"
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, label.ENVIRONMENT: "one"}) as theirs:
        try:
            assert theirs.stdout is not None and theirs.stdout.readline() == b"ready\n"
            (inside,) = Path(f"/proc/{theirs.pid}/task/{theirs.pid}/children").read_text().split()
            assert int(inside) not in dict(label.processes())
            assert int(inside) not in label.kill_processes("one") and theirs.poll() is None
        finally:
            theirs.kill()


@pytest.mark.local
def test_a_process_that_starts_others_meanwhile_is_ended_with_them() -> None:
    program = "import subprocess, time\nwhile True:\n    subprocess.Popen(['sleep', '60'])\n    time.sleep(0.02)"
    with label.labelled("busy"):
        busy = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: len(list(label.processes("busy"))) >= 4)
    assert busy.pid in label.kill_processes("busy")
    assert list(label.processes("busy")) == []
    busy.wait(PATIENCE_S)


@pytest.mark.system
@pytest.mark.parametrize("cleared", [["env", "-i"], ["env", "-i", "setsid", "-f"]], ids=["itself", "a daemon"])
def test_what_clears_its_environment_is_found_by_its_namespace(
    cleared: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    names = Names(tmp_path)
    seconds = f"6{os.getpid()}"

    def start(*labels: tuple[str, str]) -> subprocess.Popen[bytes]:
        names.take_on("oslo-w0", label.domain_name(dict(labels)))
        return subprocess.Popen([*cleared, "sleep", seconds], stdin=subprocess.DEVNULL)

    def asleep() -> set[int]:
        words = f"sleep\0{seconds}\0".encode()
        with suppress(OSError):
            return {pid for pid in label._others() if Path(f"/proc/{pid}/cmdline").read_bytes() == words}
        return set()

    with closing(Namespace()) as namespace:
        one, two = (label.ENVIRONMENT, "one"), (label.ENVIRONMENT, "two")
        started = [
            inside(namespace.path, lambda: start(one, (label.LAUNCH, f"first-{seconds}"))),
            inside(namespace.path, lambda: start(one, (label.LAUNCH, "second"))),
            inside(namespace.path, lambda: start(two)),
        ]
        until(lambda: len(asleep()) == 3)
        everything = asleep()
        request.addfinalizer(partial(label.kill_processes, label=label.ENVIRONMENT))
        until(lambda: {pid for pid, _ in label.processes()} == everything)  # what forked a daemon has ended
        (first,) = label.kill_processes(f"first-{seconds}", label.LAUNCH)
        (second,) = label.kill_processes("one")
        (third,) = label.kill_processes()
        assert {first, second, third} == everything
        for each in started:
            each.wait(PATIENCE_S)
    assert not asleep()


@pytest.mark.system
def test_a_marked_command_has_this_machine_s_host_name_and_is_found() -> None:
    labels = {"TESTBED_TEST_CLUSTER": f"c{os.getpid()}"}
    script = "env -i hostname; exec env -i sleep 600"
    with subprocess.Popen(label.marked(["sh", "-c", script], labels), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().strip() == os.uname().nodename
        ((name, value),) = labels.items()
        assert started.pid in label.kill_processes(value, name)


@pytest.mark.local
def test_a_network_brought_up_by_a_labelled_program_does_not_carry_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the end of a `launch --on-host` would kill the network's processes, and leave its containers and folder."""
    owner, variables, is_up = tmp_path / "owner", tmp_path / "variables", json.dumps({"up": "fjords"})
    owner.write_text(f"#!/bin/sh\nenv > {variables}\necho '{is_up}'\n")
    owner.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(owner))
    labels = (label.ENVIRONMENT, label.LAUNCH)
    for name in labels:
        monkeypatch.setenv(name, "other")
    bring_up("fjords", Path("fjords.yaml"), "auto", ProgramContainers(), lambda title: nullcontext())
    assert not [line for line in variables.read_text().splitlines() if line.partition("=")[0] in labels]


@pytest.mark.pure
def test_a_domain_name_is_one_that_the_kernel_takes() -> None:
    name = label.domain_name({label.ENVIRONMENT: "n" * 58, label.LAUNCH: "l" * 58})
    assert name.startswith("testbed.") and len(name) <= 64


@pytest.mark.local
def test_what_has_no_environment_is_not_waited_for() -> None:
    """Clean-up waits for programs that are being loaded, whose environment the kernel does not show yet.

    These programs are loaded, and have no environment: to wait for them would take KILL_DEADLINE_S.
    """
    bare = subprocess.Popen(["env", "-i", "sleep", "600"])
    ended = subprocess.Popen(["true"])
    try:
        until(lambda: Path(f"/proc/{bare.pid}/cmdline").read_bytes().startswith(b"sleep"))
        until(lambda: "Z" in Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2])
        assert not any(map(label.is_loading, (1, 2, os.getpid(), bare.pid, ended.pid)))
    finally:
        for each in (bare, ended):
            each.kill()
            each.wait(PATIENCE_S)


@pytest.mark.local
def test_the_label_and_the_folder_last_as_long_as_the_network() -> None:
    with label.labelled("one") as folder:
        assert os.environ[label.ENVIRONMENT] == "one"
        assert label.networks() == ["one"]
        assert label.owner("one") == ProcessIdentity.of(os.getpid())
        (folder / "control").mkdir()
    assert label.ENVIRONMENT not in os.environ
    assert label.networks() == []
    assert label.owner("one") is None
    with pytest.raises(KeyError), label.labelled("one"):
        raise KeyError
    assert label.ENVIRONMENT not in os.environ
    assert label.networks() == []


@pytest.mark.pure
@pytest.mark.parametrize("written", [False, True])
def test_a_claim_that_is_interrupted_is_given_back(written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, value: dict[str, object]) -> None:
        path.parent.mkdir(parents=True)
        if written:
            write_json(path, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(label, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt), label.labelled("one"):
        pass
    assert label.networks() == []


@pytest.mark.local
def test_a_trial_inside_a_network_gives_the_label_back() -> None:
    with label.labelled("outer"):
        with label.labelled("inner"):
            assert os.environ[label.ENVIRONMENT] == "inner"
        assert os.environ[label.ENVIRONMENT] == "outer"
    assert label.ENVIRONMENT not in os.environ


@pytest.mark.local
def test_networks_that_overlap_leave_no_label_of_one_that_has_ended() -> None:
    """A program may open two testbeds, and close the first one first."""
    with ExitStack() as second:
        with label.labelled("first"):
            second.enter_context(label.labelled("second"))
        assert os.environ[label.ENVIRONMENT] == "second"
    assert label.ENVIRONMENT not in os.environ


@pytest.mark.local
def test_two_owners_of_a_name_are_one_too_many() -> None:
    with label.labelled("one") as folder:
        with pytest.raises(FileExistsError, match="`testbed network clean --name one`"), label.labelled("one"):
            pass
        assert folder.is_dir()
        assert os.environ[label.ENVIRONMENT] == "one"


@pytest.mark.local
def test_a_dead_one_s_folder_is_taken_over() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    record("one", {"pid": ended.pid, "started": 1})
    assert label.networks() == ["one"]
    assert label.owner("one") is None
    with label.labelled("one"):
        assert label.owner("one") == ProcessIdentity.of(os.getpid())


@pytest.mark.local
def test_what_a_killed_one_left_is_taken_away_by_the_next_of_its_name() -> None:
    with label.labelled("one") as folder:
        left = sleeper()
        kept = (folder / "owner.json").read_text()
    (folder / "control").mkdir(parents=True)
    (folder / "owner.json").write_text(kept.replace('"started": ', '"started": 1'))
    with label.labelled("one") as folder:
        assert left.wait(PATIENCE_S) == -9
        assert [each.name for each in folder.iterdir()] == ["owner.json"]


#: Processes that claim names at once, and the names.
CLAIMANTS, NAMES = 8, [f"n{number}" for number in range(10)]


def claim(claimants: Barrier, given: SimpleQueue[str]) -> None:
    for name in NAMES:
        claimants.wait()
        with suppress(FileExistsError), label.labelled(name):
            given.put(name)
            claimants.wait()
            continue
        claimants.wait()


@pytest.mark.local
def test_of_many_that_want_a_name_at_once_one_gets_it() -> None:
    fork = multiprocessing.get_context("fork")
    claimants, given = fork.Barrier(CLAIMANTS, timeout=PATIENCE_S), fork.SimpleQueue()
    processes = [fork.Process(target=claim, args=(claimants, given)) for _ in range(CLAIMANTS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = []
    while not given.empty():
        found.append(given.get())
    assert found == NAMES
    assert label.networks() == []


@pytest.mark.pure
def test_a_process_that_got_a_dead_one_s_number_is_not_it() -> None:
    record("one", {"pid": os.getpid(), "started": 1})
    assert label.owner("one") is None


@pytest.mark.pure
def test_after_a_restart_of_the_machine_no_process_is_the_one_of_before() -> None:
    """The state folder may outlive a restart, where it is on no tmpfs; process numbers and start times begin again."""
    own = ProcessIdentity.of(os.getpid())
    assert own
    record("one", {"pid": own.pid, "started": own.start_ticks, "boot": "of-before"})
    assert label.owner("one") is None
    assert label.networks() == ["one"], "for `testbed network clean` to take away"
    label.remove_state("one")
    record("one", {"pid": own.pid, "started": own.start_ticks})
    assert label.owner("one") == ProcessIdentity(own.pid, own.start_ticks), "as earlier versions wrote it"


@pytest.mark.local
def test_an_ended_owner_that_was_not_reaped_is_dead() -> None:
    owner = sleeper()
    try:
        started = int(Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[19])
        record("one", {"pid": owner.pid, "started": started})
        assert label.owner("one") == ProcessIdentity(owner.pid, started)
        owner.kill()
        until(lambda: label.owner("one") is None)
        assert Path(f"/proc/{owner.pid}").exists()  # a zombie, until the wait below
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.pure
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"pid": null}', '{"pid": "x", "started": 1}', '{"pid": -1}'])
def test_an_invalid_record_names_no_owner(text: str) -> None:
    record("one", text)
    assert label.owner("one") is None


@pytest.mark.local
def test_a_network_that_another_process_claimed_meanwhile_keeps_its_folder() -> None:
    other = sleeper()
    try:
        identity = ProcessIdentity.of(other.pid)
        assert identity
        record("one", {"pid": identity.pid, "started": identity.start_ticks, "boot": identity.boot})
        record("two", {})
        label.remove_state("one")
        label.remove_state()
        assert label.networks() == ["one"]
    finally:
        other.kill()
        other.wait()


@pytest.mark.pure
def test_state_goes_by_name_or_whole() -> None:
    for name in ("one", "two"):
        record(name, {})
    label.remove_state("one")
    assert label.networks() == ["two"]
    label.remove_state()
    assert label.networks() == []
    label.remove_state()


def crash(network: str, launch: str) -> None:
    """Change the record of a launch to that of a process that has ended."""
    file = label.state_folder(network) / label.LAUNCHES / f"{launch}.json"
    file.write_text(file.read_text().replace('"started": ', '"started": 1'))


@pytest.mark.local
def test_the_programs_of_a_launch_whose_process_was_killed_are_ended_and_no_others() -> None:
    killed, runs = (f"{name}-{os.getpid()}" for name in ("killed", "runs"))
    label.state_folder("one").mkdir(parents=True)
    for launch in (killed, runs):
        label.record_launch("one", launch, ["oslo-w0"])
    assert (label.state_folder("one") / label.LAUNCHES).stat().st_mode & 0o777 == 0o700
    crash("one", killed)
    programs = {name: subprocess.Popen(["sleep", "600"], env={label.LAUNCH: name}) for name in (killed, runs)}
    try:
        assert label.launches("one") == {runs: ["oslo-w0"]}
        assert label.end_crashed_launches("one") == [programs[killed].pid]
        assert programs[killed].wait(PATIENCE_S) == -9
        assert programs[runs].poll() is None
        assert label.end_crashed_launches("one") == []
        label.forget_launch("one", runs)
        assert label.launches("one") == label.launches("two") == {}
    finally:
        for program in programs.values():
            program.kill()
            program.wait()


@pytest.mark.local
def test_an_orphan_with_the_label_of_another_launch_is_spared_while_that_one_is_recorded() -> None:
    ours, other, made_up = (f"{name}-{os.getpid()}" for name in ("ours", "other", "made-up"))
    label.state_folder("one").mkdir(parents=True)
    for launch in (ours, other):
        label.record_launch("one", launch, [])
    script = "".join(f"{label.LAUNCH}={name} sleep 600 & " for name in (ours, other, made_up))
    with subprocess.Popen(["sh", "-c", f"{script} wait"]) as shell:
        first = ProcessIdentity.of(shell.pid)
        assert first

        def orphans() -> set[str]:
            found = label.orphans_of(first, 0, "one", ours)
            labels = dict(label.processes(label=label.LAUNCH))
            return {labels.get(each.pid, "") for each in found}

        try:
            until(lambda: orphans() == {ours, made_up})
            crash("one", other)
            assert orphans() == {ours, other, made_up}
        finally:
            for launch in (ours, other, made_up):
                label.kill_processes(launch, label.LAUNCH)
