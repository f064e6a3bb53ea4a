from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.errors import NOT_HERE
from testbed.run.conclusion.conclude import failed
from testbed.run.directory import NotRemoved, RunDirectory, is_going_on, past_runs, remove_run
from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.planned_run import PlannedRun, Point
from testbed.run.sweep.sweep import SweepRecord

pytestmark = pytest.mark.local


def test_each_run_has_its_own_and_latest_is_the_newest(tmp_path: Path) -> None:
    runs = [RunDirectory("quick", tmp_path / "runs") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.path.name == run.id and run.id.startswith("quick-") for run in runs)
    latest = tmp_path / "runs" / "latest"
    assert latest.resolve() == runs[-1].path.resolve()
    assert not Path(os.readlink(latest)).is_absolute()  # noqa: PTH115 (what the link itself says)


def test_past_runs_are_listed_and_removed(tmp_path: Path) -> None:
    going, over, cut = (RunDirectory(name, tmp_path) for name in ("going", "over", "cut"))
    ended = {"pid": 1, "start_ticks": 1, "boot": "earlier"}
    for run in (over, cut):
        run.write("manifest.json", {**(run.read_whole("manifest.json") or {}), "process": ended})
        run.close()
    over.write("summary.json", {"verdict": "trusted", "reasons": []})
    (over.path / "traffic.jsonl").write_bytes(1_000_000 * b"x")
    (tmp_path / "sweep").mkdir()
    found = {run.experiment: run for run in past_runs(tmp_path)}
    assert {name: run.state for name, run in found.items()} == {
        "going": "going on",
        "over": "trusted",
        "cut": "cut off",
    }
    assert 1_000_000 <= found["over"].bytes < 1_100_000
    for kept in (going.path, tmp_path / "sweep", tmp_path / "none"):
        with pytest.raises(NotRemoved):
            remove_run(kept)
    assert remove_run(tmp_path / "latest").id == cut.id
    assert (tmp_path / "latest").resolve() == over.path
    assert remove_run(over.path).state == "trusted"
    assert [run.id for run in past_runs(tmp_path)] == [going.id]
    assert (tmp_path / "latest").resolve() == going.path
    going.close()


def test_renamed_runs_are_listed_by_their_names_and_never_the_latest(tmp_path: Path) -> None:
    """A link to a name that is no run's would count as the user's own, and stay."""
    first, second = (RunDirectory(name, tmp_path) for name in ("first", "second"))
    for run in (first, second):
        run.write("summary.json", {"verdict": "trusted", "reasons": []})
        run.close()
    baseline = first.path.rename(tmp_path / "baseline")
    (tmp_path / ".left").mkdir()
    (tmp_path / ".left" / "manifest.json").write_bytes((baseline / "manifest.json").read_bytes())
    assert [run.path.name for run in past_runs(tmp_path)] == ["baseline", second.id]
    remove_run(tmp_path / "latest")
    assert not os.path.lexists(tmp_path / "latest")
    RunDirectory("third", tmp_path).close()
    assert (tmp_path / "latest").resolve().name.startswith("third-")


def test_a_run_that_has_its_summary_is_over_while_its_process_makes_others(tmp_path: Path) -> None:
    first, second = (RunDirectory(name, tmp_path) for name in ("first", "second"))
    first.write("summary.json", {"verdict": "trusted", "reasons": []})
    assert [run.state for run in past_runs(tmp_path)] == ["trusted", "going on"]
    assert remove_run(first.path).id == first.id
    with pytest.raises(NotRemoved):
        remove_run(second.path)


def test_brackets_thousands_deep_do_not_end_the_list_of_runs(tmp_path: Path) -> None:
    deep = '{"experiment": ' + "[" * 100_000
    run = RunDirectory("quick", tmp_path)
    run.close()
    (run.path / "summary.json").write_text(deep)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text(deep)
    assert [(each.id, each.state) for each in past_runs(tmp_path)] == [(run.id, "going on")]


def test_wrong_values_do_not_end_the_list_of_runs(tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path)
    run.close()
    (run.path / "summary.json").write_text('{"finished": []}')
    for name, began_s in (("no-year", "1e300"), ("no-float", "9" * 400)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(f'{{"experiment": "quick", "started_s": {began_s}}}')
    assert [(each.id, each.state) for each in past_runs(tmp_path)] == [(run.id, "going on")]


def test_a_run_that_a_sweep_under_way_has_recorded_stays(tmp_path: Path) -> None:
    swept, other = (RunDirectory(name, tmp_path) for name in ("swept", "other"))
    for run in (swept, other):
        run.write("summary.json", {"verdict": "trusted", "reasons": []})
        run.close()
    with SweepRecord("rates", tmp_path) as record:
        record.add(PlannedRun(Point({}, {}, ""), 1, 1), Executed(True, "trusted", swept.path))
        with pytest.raises(NotRemoved):
            remove_run(swept.path)
        assert remove_run(other.path).id == other.id
    assert remove_run(swept.path).id == swept.id


def test_a_run_is_removed_from_within_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, run = RunDirectory("older", tmp_path), RunDirectory("run", tmp_path)
    run.write("manifest.json", {**(run.read_whole("manifest.json") or {}), "process": None})
    for each in (older, run):
        each.close()
    monkeypatch.chdir(run.path)
    assert remove_run(Path()).path == run.path
    assert not run.path.exists()
    assert (tmp_path / "latest").resolve() == older.path


def test_two_of_one_name_and_second_in_two_folders_are_two(tmp_path: Path) -> None:
    """A run's name is its network's, of which a machine has one."""
    assert RunDirectory("quick", tmp_path / "a").id != RunDirectory("quick", tmp_path / "b").id


def test_many_at_once_all_have_a_directory_and_latest_is_one_of_them(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDirectory("quick", tmp_path), range(40)))
    assert len({run.path for run in runs}) == 40
    assert (tmp_path / "latest").resolve() in {run.path for run in runs}
    assert {path.name for path in tmp_path.iterdir()} == {"latest", *(run.id for run in runs)}


def test_digits_that_another_run_has_are_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory, or one that it still makes."""
    monkeypatch.setattr("time.strftime", lambda *_: "20261123-120000")
    drawn = iter(["aaaa", "aaaa", "bbbb", "cccc"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(drawn))
    first = RunDirectory("quick", tmp_path)
    (tmp_path / ".quick-20261123-120000-bbbb").mkdir()
    assert RunDirectory("quick", tmp_path).id.endswith("-cccc")
    assert first.read_whole("manifest.json") and next(drawn, None) is None


def test_it_has_a_manifest_from_the_beginning(tmp_path: Path) -> None:
    manifest = RunDirectory("quick", tmp_path).read_whole("manifest.json")
    assert manifest and manifest["experiment"] == "quick"
    assert is_going_on(manifest)
    assert not is_going_on({**manifest, "process": {**manifest["process"], "boot": "of-before"}})
    assert not is_going_on({"id": "of an earlier version"})


def test_a_failure_leaves_the_summary_of_a_run_that_came_to_its_end(tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path)
    failed(run, "broke off")
    assert run.read_whole("summary.json")["reasons"] == ["broke off"]  # type: ignore[index]
    run = RunDirectory("quick", tmp_path)
    run.write("summary.json", {"verdict": "trusted"})
    failed(run, "the page could not be made")
    assert run.read_whole("summary.json") == {"verdict": "trusted"}


def test_what_is_written_is_read_back_at_any_time(tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path)
    run.append("events.jsonl", {"kind": "down", "at_s": 1.5})
    assert run.read("events.jsonl") == [{"kind": "down", "at_s": 1.5}]  # before it is closed
    run.write("summary.json", {"verdict": "trusted", "loss": float("nan")})
    assert run.read_whole("summary.json") == {"verdict": "trusted", "loss": None}
    assert run.read("events.jsonl", without=("at_s", "by")) == [{"kind": "down"}]
    assert run.read("never.jsonl") == []
    assert run.read_whole("never.json") is None
    run.close()


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path)
    threads = [
        threading.Thread(target=lambda i=i: [run.append("x.jsonl", {"n": [i] * 500}) for _ in range(20)])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    found = run.read("x.jsonl")
    assert sorted(record["n"][0] for record in found) == sorted([*range(8)] * 20)
    assert all(record["n"] == [record["n"][0]] * 500 for record in found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_user_behind_sudo_gets_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "54321")
    root = tmp_path / "runs"
    run = RunDirectory("quick", root)
    run.append("events.jsonl", {})
    run.write("summary.json", {})
    run.close()
    for path in (root, root / "latest", run.path, run.path / "logs", run.path / "events.jsonl"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (12345, 54321), path
    assert tmp_path.stat().st_uid == 0


def test_files_that_cannot_be_given_away_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `sudo -u SOMEBODY`, or in a file system without owners."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setattr(os, "chown", refuse)
    run = RunDirectory("quick", tmp_path / "runs")
    run.write("summary.json", {})
    run.close()
    assert run.read_whole("summary.json") == {}


def test_a_run_whose_files_come_and_go_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory("quick", tmp_path)
    for number in range(3):
        (run.path / f"summary.json.{number}.new").touch()
    lstat = Path.lstat

    def look(path: Path) -> os.stat_result:
        if path.suffix == ".new":
            path.unlink()  # its writer has moved it into its place
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", look)
    assert [each.id for each in past_runs(tmp_path)] == [run.id]


@pytest.mark.parametrize("own", ["folder", "file", "link"])
def test_latest_that_is_the_users_own_is_left_alone(own: str, tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    if own == "folder":
        latest.mkdir()
        (latest / "events.out.tfevents.1").touch()
    elif own == "file":
        latest.write_text("a user's own")
    else:
        latest.symlink_to("my-best-model")
    before = latest.readlink() if latest.is_symlink() else latest.stat().st_ino
    run = RunDirectory("quick", tmp_path)
    run.close()
    assert before == (latest.readlink() if latest.is_symlink() else latest.stat().st_ino)
    assert {path.name for path in tmp_path.iterdir()} == {"latest", run.id}
    assert run.remove_if_empty()
    assert before == (latest.readlink() if latest.is_symlink() else latest.stat().st_ino)


def test_nothing_is_left_where_no_directory_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(CannotRun) as raised:
        RunDirectory("quick", tmp_path / "runs")
    assert NOT_HERE[errno.ENOSPC] in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_record_is_removed_with_what_was_made_for_it(tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path / "a" / "runs")
    assert run.remove_if_empty()
    run.close()
    assert list(tmp_path.iterdir()) == []
    earlier, run = RunDirectory("quick", tmp_path), RunDirectory("quick", tmp_path)
    assert run.remove_if_empty()
    assert (tmp_path / "latest").resolve() == earlier.path


@pytest.mark.parametrize("file", ["summary.json", "manifest.json", "logs/a.log", "events.jsonl"])
def test_a_directory_with_a_record_stays(file: str, tmp_path: Path) -> None:
    run = RunDirectory("quick", tmp_path)
    run.write(file, {})
    assert not run.remove_if_empty() and (run.path / file).exists()
    run.close()
