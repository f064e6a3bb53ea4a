"""The limits of containers: each worker's share of the host, and attacks that stay within one container."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container
from pydantic import TypeAdapter

from testbed.emulation.containers import engine, limits
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.containers.limits import (
    LOG_BYTES,
    RESERVE_BYTES,
    ContainerLimits,
    clean_volumes,
    is_in_control_group,
    written_size,
)
from testbed.emulation.errors import EmulationError
from testbed.emulation.host import doctor
from testbed.emulation.label import LABEL
from testbed.emulation.network.holders import idle_requests
from testbed.spec.errors import SpecError
from testbed.spec.topology import Worker
from testbed.spec.units import Size
from tests.waiting import PATIENCE_S, until

MARK = f"t{os.getpid()}-limits"
GIB = 1 << 30
ABLE = {"MemoryLimit": True, "SwapLimit": True, "PidsLimit": True}


def worker(number: int, memory: int | None = None) -> Worker:
    return Worker(f"lima-w{number}", "lima", 1.0, None, 0, memory)


# Who gets how much --------------------------------------------------------------------------------------------------


@pytest.fixture
def eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 8 * GIB + RESERVE_BYTES)


@pytest.mark.pure
def test_what_is_left_is_shared_by_workers_that_declare_nothing(eight_gib: None) -> None:
    workers = [worker(0), worker(1), worker(2, memory=2 * GIB)]
    shared = ContainerLimits.of(workers, ABLE)
    assert [shared.memory_of(each) for each in workers] == [3 * GIB, 3 * GIB, 2 * GIB]
    assert shared.settings(workers[0])["memswap_limit"] == 3 * GIB, "no swap beyond it"
    record = shared.record(workers)
    assert record["memory_bytes"] == {"lima-w0": 3 * GIB, "lima-w1": 3 * GIB, "lima-w2": 2 * GIB}
    assert record["not_in_force"] == {}


@pytest.mark.pure
def test_what_was_ended_for_its_memory_is_counted_as_either_version_of_control_groups_writes_it() -> None:
    assert limits.oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert limits.oom_kills("low 0\nhigh 0\nmax 9\noom 7\noom_kill 4\noom_group_kill 0\n") == 4
    assert limits.oom_kills("oom_kill_disable 0\nunder_oom 0\n") == 0, "kernels before 4.13 do not count"


MOUNTS = b"""\
100 90 0:50 / / rw - overlay overlay rw
101 100 0:51 / /sys ro,nosuid - sysfs sysfs ro
102 101 0:29 / /sys/fs/cgroup ro - cgroup2 cgroup rw
"""
#: Two lines of a container with control groups of version 1.
VERSION_1 = b"""\
102 101 0:29 / /sys/fs/cgroup ro - tmpfs tmpfs rw
103 102 0:30 /docker/0 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
"""
#: The name of a folder may have what ends a line elsewhere.
ODD = b"104 100 0:60 / /a\x0b\r\xe2\x80\xa8b rw - tmpfs tmpfs rw\n"


@pytest.mark.pure
def test_figures_of_memory_are_read_in_mounts_of_control_groups_alone() -> None:
    events, control = "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"
    assert is_in_control_group(MOUNTS, events) and is_in_control_group(ODD + MOUNTS + ODD, events)
    assert not is_in_control_group(MOUNTS, "/sys/fs/memory.events")
    assert is_in_control_group(VERSION_1, control) and not is_in_control_group(VERSION_1, events)
    for covered in (b"/sys/fs/cgroup", b"/sys"):
        assert not is_in_control_group(MOUNTS + b"104 100 0:60 / " + covered + b" rw - tmpfs tmpfs rw\n", events)
    assert not is_in_control_group(b"", events)


@pytest.mark.pure
def test_volumes_are_known_by_their_shortest_paths() -> None:
    assert clean_volumes("theirs", ["/data/", "/data", "//var/./cache/", "/devices"]) == (
        "/data",
        "/var/cache",
        "/devices",
    )


@pytest.mark.pure
@pytest.mark.parametrize("place", ["/", "data", ".", "/dev/", "/sys/fs/cgroup", "//sys/fs/cgroup", "/data/../proc/1"])
def test_a_volume_in_the_place_of_a_container_s_own_file_systems_is_refused(place: str) -> None:
    with pytest.raises(SpecError) as caught:
        clean_volumes("theirs", ["/data", place])
    assert caught.value.fields == ("image",)


@pytest.mark.pure
def test_a_host_with_nothing_left_for_them_says_so(eight_gib: None) -> None:
    with pytest.raises(EmulationError) as caught:
        ContainerLimits.of([worker(0), worker(1, memory=9 * GIB)], ABLE)
    assert caught.value.rule == "memory"
    ContainerLimits.of([worker(1, memory=9 * GIB)], ABLE)  # what is declared holds


@pytest.mark.pure
def test_what_a_kernel_cannot_keep_is_written_down_and_refused_where_it_was_declared(eight_gib: None) -> None:
    missing = ContainerLimits.of([worker(0)], {**ABLE, "MemoryLimit": False, "PidsLimit": False})
    assert sorted(missing.record([worker(0)])["not_in_force"]) == ["memory", "pids"]
    missing.settings(worker(0))
    with pytest.raises(EmulationError) as caught:
        missing.settings(worker(0, memory=GIB))
    assert (caught.value.rule, caught.value.member) == ("no-controller", "lima-w0")


@pytest.mark.pure
def test_doctor_says_what_a_kernel_cannot_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def info(self) -> dict[str, Any]:
            return {**ABLE, "PidsLimit": False}

    monkeypatch.setattr(engine, "connect", Engine)
    found = doctor._limits(doctor.Probes())
    assert "pids" in found.found and not found.blocks
    assert "CONFIG_CGROUP_PIDS" in found.remedy


# Attacks ------------------------------------------------------------------------------------------------------------

#: Four in one worker. Where nothing bounds them they end by themselves, at three times what is allowed.
ATTACKS = """
import os, signal, time

def fork_bomb():
    for _ in range(3 * PIDS):
        try:
            if os.fork() == 0:
                time.sleep(600)
        except OSError:
            time.sleep(0.01)

def endless_log():
    for _ in range(3 * LOG_BYTES // 1000):
        os.write(1, b"x" * 999 + b"\\n")

def memory_hog():
    kept = [b"x" * (1 << 20) for _ in range(3 * MEMORY >> 20)]
    time.sleep(600)

def disk_hog():
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run/testbed"):
        try:
            with open(folder + "/file", "wb") as file:
                for _ in range(200):
                    file.write(bytes(1 << 20))
        except OSError as error:
            pass

for attack in (endless_log, memory_hog, disk_hog, fork_bomb):
    if os.fork() == 0:
        attack()
        os._exit(0)
signal.pause()
"""
MEMORY = 512 << 20


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[tuple[Fleet, Fleet]]:
    """Yield the fleets of two networks."""
    with ExitStack() as stack:
        one, two = (Fleet.connected(f"{MARK}-{name}", tmp_path) for name in ("one", "two"))
        stack.callback(one.remove)
        stack.callback(two.remove)
        yield one, two


def container_of(fleet: str, worker: Worker) -> Container:
    found = engine.connect().containers.list(filters={"label": f"{LABEL}={MARK}-{fleet}"})
    return next(each for each in found if str(each.name).endswith(worker.name))


def log_on_disk(container: Container) -> int:
    """Bytes of its files; one that is renamed just now counts the next time."""
    log, found = Path(container.attrs["LogPath"]), 0
    for file in log.parent.glob(log.name + "*"):
        with suppress(FileNotFoundError):
            found += file.stat().st_size
    return found


def still_works(container: Container) -> bool:
    """Return whether a worker can start a program that gets memory.

    The exit code tells: on a busy host the engine may lose what a short command prints.
    """
    done = container.exec_run(["python3", "-c", "raise SystemExit(len(b'x' * (50 << 20)) >> 20)"])
    return bool(done.exit_code == 50)


@pytest.mark.physics
def test_a_fork_bomb_an_endless_log_and_hogs_in_one_worker_leave_all_others_alone(fleets: tuple[Fleet, Fleet]) -> None:
    attacker, innocent, other = worker(0, memory=MEMORY), worker(1), worker(2)
    one, two = fleets
    two.start(idle_requests([other]))
    pids = limits.PIDS + 2 * limits.PIDS_A_MEMBER
    figures = f"PIDS, MEMORY, LOG_BYTES = {pids}, {MEMORY}, {LOG_BYTES}\n"
    attack = ContainerRequest(attacker, ["-c", figures + ATTACKS], entrypoint=["python3"])
    one.start([attack, *idle_requests([innocent])])
    attacked = container_of("one", attacker)

    deadline, most = time.monotonic() + PATIENCE_S, 0
    while log_on_disk(attacked) < LOG_BYTES // 2 or most < pids // 2:
        figures_now = attacked.stats(stream=False)
        most = max(most, figures_now["pids_stats"]["current"])
        assert most <= pids
        assert figures_now["memory_stats"]["usage"] <= MEMORY
        assert log_on_disk(attacked) <= 1.5 * LOG_BYTES
        assert still_works(container_of("one", innocent)) and still_works(container_of("two", other))
        assert time.monotonic() < deadline, f"{most} processes, {log_on_disk(attacked)} bytes of log"
    assert len(one.logs(attacker.name)) <= LOG_BYTES
    assert one.running() == {attacker.name: True, innocent.name: True} and two.running() == {other.name: True}
    writable = {mount["Destination"] for mount in attacked.attrs["Mounts"] if mount["RW"]}
    assert attacked.attrs["HostConfig"]["ReadonlyRootfs"] and not writable, "nothing is on the host's disk but the log"


@pytest.mark.system
def test_a_worker_that_wants_too_much_memory_is_said_to_have(fleets: tuple[Fleet, Fleet]) -> None:
    hog = worker(0, memory=64 << 20)
    greedy = "import time; print('begins', flush=True); time.sleep(0.5); b'x' * (1 << 28)"
    (program,) = fleets[0].start([ContainerRequest(hog, ["-c", greedy], entrypoint=["python3"])]).values()
    process = os.pidfd_open(program.pid)
    assert select.select([process], [], [], PATIENCE_S)[0], "it ends"
    os.close(process)
    until(lambda: not fleets[0].running()[hog.name])  # the engine hears of it
    assert fleets[0].deaths() == {
        hog.name: "with exit code 137, out of memory: its limit is 64MiB; its log ends with:\nbegins"
    }


@pytest.mark.system
def test_the_limits_are_what_the_engine_was_told(fleets: tuple[Fleet, Fleet]) -> None:
    fleets[0].start(idle_requests([worker(0)]))
    shared = fleets[0].limits
    assert shared is not None and not shared.missing
    told: dict[str, Any] = container_of("one", worker(0)).attrs["HostConfig"]
    assert told["Memory"] == told["MemorySwap"] == shared.memory_bytes < limits.available_bytes()
    assert told["PidsLimit"] == limits.PIDS + limits.PIDS_A_MEMBER
    assert told["LogConfig"]["Config"] == {"max-file": "2", "max-size": str(LOG_BYTES // 2)}


@pytest.mark.pure
@pytest.mark.parametrize("size", ["200MB", "1.5GB", "64MiB", "1GiB", "512KB", "16B"])
def test_a_size_is_shown_as_it_was_written(size: str) -> None:
    assert written_size(int(TypeAdapter(Size).validate_python(size))) == size


@pytest.mark.pure
def test_a_size_that_no_unit_gives_in_few_digits_is_shown_in_mib() -> None:
    assert written_size(1_234_567_890) == "1177MiB"
