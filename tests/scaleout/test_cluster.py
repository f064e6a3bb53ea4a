"""The copy of a hosts file that `cluster down` reads, and what the doctor reads from `ping` and from other clocks."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed.run.errors import CannotRun
from testbed.scaleout import cluster
from testbed.scaleout.cluster import HEAD, READINGS, clock_offset, examine, portable_text, round_trip
from testbed.scaleout.ssh import Ssh
from testbed.schema import check_name
from testbed.spec.errors import SpecError
from testbed.spec.hosts import Hosts

pytestmark = pytest.mark.local

ANSWERED = """PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.

--- 10.99.0.2 ping statistics ---
21 packets transmitted, 21 received, 0% packet loss, time 1012ms
rtt min/avg/max/mdev = 4.031/4.082/4.175/0.056 ms
"""
SILENT = """PING 10.99.0.9 (10.99.0.9) 56(84) bytes of data.

--- 10.99.0.9 ping statistics ---
21 packets transmitted, 0 received, 100% packet loss, time 1024ms
"""

ONE_WAY_S = st.floats(1e-4, 0.2)
WAYS = st.lists(st.tuples(ONE_WAY_S, ONE_WAY_S), min_size=READINGS, max_size=READINGS)


def test_what_is_kept_of_a_hosts_file_names_the_same_from_another_folder(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    hosts = {"a": {"address": "10.0.0.1", "key": "keys/id"}, "b": {"address": "10.0.0.2", "port": 2222}}
    file.write_text(yaml.safe_dump({"known_hosts": "known", "hosts": hosts}))
    loaded = Hosts.load(file)
    (tmp_path / "elsewhere").mkdir()
    again = tmp_path / "elsewhere" / "hosts.yaml"
    again.write_text(portable_text(loaded))
    other = Hosts.load(again)
    assert other.path(other.spec.known_hosts or "") == (tmp_path / "known").resolve()
    assert other.path(other.by_name["a"].key or "") == (tmp_path / "keys" / "id").resolve()
    assert other.by_name["b"] == loaded.by_name["b"]


def test_the_least_round_trip_and_the_jitter_are_in_seconds() -> None:
    assert round_trip(ANSWERED) == (pytest.approx(4.031e-3), pytest.approx(0.056e-3))


def test_where_nothing_came_back_nothing_is_known() -> None:
    assert round_trip(SILENT) == (None, None)


@given(st.floats(-10, 10), WAYS)
def test_the_offset_is_within_its_bound_whatever_the_ways_take(ahead_s: float, ways: list[tuple[float, float]]) -> None:
    now_s = 1000.0
    left = iter(ways)

    def own_s() -> float:
        return now_s

    def read_s() -> float:
        nonlocal now_s
        there_s, back_s = next(left)
        now_s += there_s
        read = now_s + ahead_s
        now_s += back_s
        return read

    offset_s, bound_s = clock_offset(read_s, own_s)
    assert abs(offset_s - ahead_s) <= bound_s + 1e-9
    assert bound_s == pytest.approx(min(there + back for there, back in ways) / 2)


def test_no_host_has_the_head_s_name(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(yaml.safe_dump({"hosts": {"head": {"address": "10.0.0.1"}, HEAD: {"address": "10.0.0.2"}}}))
    with pytest.raises(SpecError) as caught:
        Hosts.load(file)
    assert [HEAD in fault.field for fault in caught.value.faults] == [True]
    check_name(HEAD)  # its certificate has this name


@pytest.mark.parametrize("tool", ["git", "none"])
def test_a_host_gets_each_file_by_which_its_checkout_is_judged(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("testbed/tracked.py", "testbed/new.py", "setup.sh", "build/left.py", "topologies/one.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("build\n")
    for words in (["init"], ["add", "testbed/tracked.py"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    monkeypatch.setattr(cluster, "ROOT", tmp_path)
    if tool == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    judged = {str(each.relative_to(tmp_path)) for each in cluster._carried(cluster.CODE)}
    with tarfile.open(fileobj=io.BytesIO(cluster._packed())) as archive:
        packed = set(archive.getnames())
    assert judged == {"testbed/tracked.py", "testbed/new.py", "setup.sh"}
    assert packed == judged | {"topologies/one.yaml"}


@pytest.mark.parametrize("there", ["nothing", "empty", "files"])
def test_a_checkout_is_copied_whole_and_over_nobody_s_files(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root := tmp_path / "root").mkdir()
    (root / "setup.sh").write_text("ours")
    monkeypatch.setattr(cluster, "ROOT", root)
    folder = tmp_path / "there"
    (theirs := tmp_path / "there.new").mkdir()
    if there != "nothing":
        folder.mkdir()
    if there == "files":
        (folder / "README.md").write_text("theirs")

    class Local:
        name, host = "north", SimpleNamespace(folder=str(folder))

        def run(self, script: str, given: bytes = b"") -> str:
            done = subprocess.run(["bash", "-c", script], input=given, capture_output=True)
            if done.returncode:
                raise CannotRun(done.stderr.decode())
            return done.stdout.decode()

    if there == "files":
        with pytest.raises(CannotRun):
            cluster._bring_checkout(cast(Ssh, Local()))
        assert (folder / "README.md").read_text() == "theirs" and not (folder / "setup.sh").exists()
    else:
        cluster._bring_checkout(cast(Ssh, Local()))
        assert (folder / "setup.sh").read_text() == "ours"
    assert [*tmp_path.glob("there.*")] == [theirs]


class RayError(Exception):
    """An error of the Ray below."""


class SilentRay:
    """A Ray whose actors never answer."""

    exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, **_: object) -> Callable[[type], object]:
        actor = SimpleNamespace(facts=SimpleNamespace(remote=lambda: "asked"))
        return lambda _: SimpleNamespace(remote=lambda: actor)

    def get(self, _: object, timeout: float) -> object:
        raise RayError(f"no answer in {timeout:g} s")


def test_a_host_that_does_not_answer_the_doctor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connected", lambda: nullcontext(SilentRay()))
    monkeypatch.setattr(cluster, "hosts_alive", lambda _: {"north": "10.0.0.1"})
    with pytest.raises(CannotRun, match=r"north \(10\.0\.0\.1\).*no answer"):
        examine()


def test_a_host_of_another_cluster_is_refused_before_anything_is_done_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(yaml.safe_dump({"hosts": {"north": {"address": "10.0.0.1"}, "south": {"address": "10.0.0.2"}}}))
    asked: list[str] = []

    def run(ssh: Ssh, script: str, *_: object, **__: object) -> str:
        asked.append(script)
        return "there\n" if ssh.name == "south" else ""

    monkeypatch.setattr(cluster.node, "CONFIGURATION", tmp_path / "node.json")
    monkeypatch.setattr(cluster, "_own_address", lambda _: "10.0.0.9")
    monkeypatch.setattr(Ssh, "run", run)
    with pytest.raises(CannotRun, match=r"^south: .*cluster down") as refused:
        cluster.up(Hosts.load(file), lambda _: None)
    assert "north" not in str(refused.value)
    assert len(asked) == 2 and all(script.startswith("test -e ") for script in asked)
