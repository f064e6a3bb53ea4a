"""Sweeps on the hosts of a cluster: a run is a Ray task that takes a whole host and starts `testbed run` there.

    waiting ──> a task on a host that is free ──> the whole directory is here: the run counts
       ^                     │
       └── its host is lost ─┘

The experiment's files travel with the task, and the run's directory comes back as its result. No packet of the emulated
network, no row of a trace and no sample passes through Ray.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.emulation.containers.program_image import files_of
from testbed.lazy import is_file
from testbed.run.directory import RUNS, point_latest_at
from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.planned_run import PlannedRun, program_files
from testbed.run.sweep.sweep import Watcher
from testbed.scaleout.node import LABEL, RESOURCE, RUN_LABEL, SCRATCH, connected, end_runs, hosts_alive, read
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.load import holds, is_part
from testbed.sudo import give_back
from testbed.telemetry.store import read_json, write_json

#: How often to look whether hosts came or went, in seconds.
LOOK_S = 1.0
#: A host whose run broke off gets no other run for this many seconds, within which Ray detects a lost host (HEALTH).
REST_S = 90.0
#: A run's share of the Ray resource that only its host has. The rest is for the doctor, which asks hosts meanwhile.
HOST_SHARE = 0.001
#: A run that was lost with its host this many times may be what ends its hosts.
MOST_LOSSES = 3
#: The exit codes of a `testbed run` that reached a verdict or failed, rather than being refused by input or machine.
CAME_TO_AN_END = (0, 1)

#: Where a host unpacks an experiment's files.
FILES = SCRATCH / "files"
#: The suffix of a run's folder name until all its files are there.
UNFINISHED = ".incoming"


# On this machine ------------------------------------------------------------------------------------------------------


class OnRay:
    """Makes a sweep's runs on the cluster that is up here."""

    def __init__(self, strict: bool, root: Path = RUNS) -> None:
        self._strict = strict
        self._root = root

    def __call__(
        self, file: Path, runs: Sequence[PlannedRun], watcher: Watcher
    ) -> Iterator[tuple[PlannedRun, Executed]]:
        """Make the runs, one at a time on each host, and yield each as it ends.

        A run whose host is lost is made again on another host. The watcher is told of each host that is lost.

        Raises:
            SpecError: A command on the host needs files of the current folder, which hosts do not have.
            CannotRun: No host is left, a host can't make runs, or a run was lost MOST_LOSSES times.
        """
        if not runs:
            return
        for run in {run.point.hash: run for run in runs}.values():
            _check_current_folder(Experiment.load(file, run.overrides))
        with connected() as ray:
            waiting, losses = deque(runs), Counter[str]()
            running: dict[str, tuple[PlannedRun, Any]] = {}  # by host
            rests_until_s: dict[str, float] = {}
            task = ray.remote(num_cpus=0, max_retries=0)(make_run)
            hosts = hosts_alive(ray)

            def lose(host: str, reason: str) -> None:
                """Tell the watcher why a host's run is lost, and have the run made again. The host may have no run."""
                run, reference = running.pop(host, (None, None))
                if run is not None:
                    ray.cancel(reference)  # a task that its host has not begun would wait for the host forever
                    losses[run.key] += 1
                    if losses[run.key] == MOST_LOSSES:
                        text = f"{run.words}: the run was lost with its host {MOST_LOSSES} times; last: {reason}"
                        raise CannotRun(text)
                    waiting.appendleft(run)
                watcher.lost(reason, run)

            try:
                while waiting or running:
                    before, hosts = hosts, hosts_alive(ray)
                    for host in sorted(before.keys() - hosts.keys()):
                        lose(host, f"host {host} ({before[host]}) is lost")
                    if not hosts:
                        raise CannotRun("no host of the cluster is left; see `testbed cluster doctor`")
                    now_s = time.monotonic()
                    free = [host for host in hosts.keys() - running.keys() if rests_until_s.get(host, 0.0) <= now_s]
                    for host in sorted(free)[: len(waiting)]:
                        watcher.begin(run := waiting.popleft())
                        bundle = Bundle.of(Experiment.load(file, run.overrides), run.overrides)
                        on_host = task.options(resources={RESOURCE: 1, f"host:{host}": HOST_SHARE})
                        running[host] = run, on_host.remote(bundle, self._strict)
                    if not running:
                        time.sleep(LOOK_S)
                        continue
                    done, _ = ray.wait([reference for _, reference in running.values()], timeout=LOOK_S)
                    for host, (run, reference) in list(running.items()):
                        if reference not in done:
                            continue
                        try:
                            made = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            raise CannotRun(f"{run.words}: {error}") from error
                        except ray.exceptions.RayError as error:
                            rests_until_s[host] = time.monotonic() + REST_S
                            lose(host, f"host {host} ({hosts[host]}) broke off: {str(error).partition(chr(10))[0]}")
                            continue
                        del running[host]
                        executed = self._receive(run, made)
                        watcher.end(run, executed)
                        yield run, executed
            finally:
                for _, reference in running.values():
                    ray.cancel(reference)

    def _receive(self, run: PlannedRun, made: MadeRun) -> Executed:
        """Unpack a run's directory here, and record in its manifest the host that made it."""
        if made.name is None or made.code not in CAME_TO_AN_END:
            raise CannotRun(f"{made.host} can't make {run.words} (`testbed run` ended with {made.code}):\n{made.said}")
        directory = unpack_run(made.archive, self._root, made.name)
        manifest, page = directory / "manifest.json", directory / "report.html"
        write_json(manifest, {**read_json(manifest), "made_on": made.host})
        give_back([manifest])
        summary = read_json(directory / "summary.json")
        finished = summary["training"]["wall_seconds"] is not None
        return Executed(finished, summary["verdict"], directory, page if page.exists() else None)


# On a host ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeRun:
    """A run that a host made: its exit code, its output and the name of its directory."""

    host: str
    #: The exit code of `testbed run`.
    code: int
    #: The output of `testbed run`, errors first.
    said: str
    #: The name of the run's directory, or None where the run left none.
    name: str | None = None
    archive: bytes = b""


def make_run(bundle: Bundle, strict: bool) -> MadeRun:
    """Make a run on this host, as `testbed run` does, in a process of its own.

    That process is ended together with this one, and then removes all that it made.
    """
    host = read().name or ""
    end_runs()  # a task that was killed with its host's connection may still be removing its network
    try:
        file = bundle.unpack(FILES)
        words = [word for field, value in bundle.overrides.items() for word in ("--set", f"{field}={value}")]
        words += ["--strict"] if strict else []
        process = _start([sys.executable, "-P", "-m", "testbed", "run", str(file), "--json", *words], SCRATCH)
        try:
            output, errors = process.communicate()
        except BaseException:  # the caller cancelled the run
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        directories = [each for each in (SCRATCH / "runs").glob("*") if each.is_dir() and not each.is_symlink()]
        made = next((each for each in directories if not each.name.startswith(".")), None)
        said = (errors + output).strip()
        if made is None:
            return MadeRun(host, process.returncode, said)
        return MadeRun(host, process.returncode, said, made.name, pack_run(made))
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a program with the usual niceness and without Ray's variables. It gets SIGTERM when this process ends."""
    usual = ["nice", "-n", str(-os.getpriority(os.PRIO_PROCESS, 0)), "setpriv", "--pdeathsig=TERM"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name != LABEL}
    return subprocess.Popen(
        [*usual, *command],
        cwd=folder,
        env={**environment, RUN_LABEL: read().cluster},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# On the way -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bundle:
    """An archive of an experiment's files, the path of the experiment's own file in it, and the values in its place."""

    archive: bytes
    experiment: str
    #: The settings of the command line and the sweep, with the paths that their files have below FILES.
    overrides: Mapping[str, str]

    @classmethod
    def of(cls, experiment: Experiment, overrides: Mapping[str, str]) -> Bundle:
        """Pack all files that an experiment names, at the same paths relative to each other.

        A link to a file becomes a file of the link's name: by that name the experiment finds it. `overrides` are the
        values with which the experiment was loaded.
        """
        found = [_named(each) for each in _files(experiment)]
        root = Path(os.path.commonpath([each.parent for each in found]))

        def there(name: Any) -> Any:
            return str(FILES / _named(Path(name)).relative_to(root)) if is_file(str(name)) else name

        sync = experiment.spec.sync
        named = {"sync.strategy": there(sync.strategy), "sync.policy": there(sync.policy)}
        if isinstance(also := sync.options.get("also"), list):
            named["sync.options.also"] = [there(name) for name in also]
        moved = {
            field: json.dumps(value) for field, value in named.items() if any(is_part(field, key) for key in overrides)
        }
        return cls(_pack(root, found), str(_named(experiment.file).relative_to(root)), {**overrides, **moved})

    def unpack(self, folder: Path) -> Path:
        """Unpack the files into `folder`, and return the path of the experiment's file."""
        _unpack(self.archive, folder)
        return folder / self.experiment


def _files(experiment: Experiment) -> Iterator[Path]:
    """Yield the files that an experiment names. Of the runs made so far, only files that its command names count."""
    yield from experiment.files
    if (program := experiment.spec.program) is not None:
        folder, runs = experiment.file.parent, RUNS.resolve()
        inside = (each for each in (folder / program.files).rglob("*") if not _named(each).is_relative_to(runs))
        yield from (each for each in inside if each.is_file())
        yield from program_files(experiment)  # an earlier run's file, too
        if image := program.image_from(folder):
            yield from files_of(image)


def _check_current_folder(experiment: Experiment) -> None:
    """Raise SpecError if a command without containers names files by paths that begin in the current folder."""
    program = experiment.spec.program
    if program is None or not program.on_host:
        return
    words = (word for command in program.commands(experiment.topology).values() for word in command)
    named = [*map(Path, words), *filter(None, [program.scheme_file(experiment.file.parent)])]
    if here := sorted({str(each) for each in named if not each.is_absolute() and holds(each.is_file)}):
        rule = f"with `--on ray`, the command starts in an empty folder of its host, without {', '.join(here)}"
        remedy = "no `on_host`, since containers get the files; or paths at which each host has them"
        raise SpecError(experiment.file, [Fault("train.on_host", rule, remedy)])


def _named(file: Path) -> Path:
    """Return a file's absolute path, with links among its folders resolved; the file itself may be a link."""
    return file.parent.resolve() / file.name


def pack_run(directory: Path) -> bytes:
    """Return a run's directory as an archive."""
    return _pack(directory, (each for each in directory.rglob("*") if each.is_file()))


def unpack_run(archive: bytes, root: Path, name: str) -> Path:
    """Unpack a run's directory to `root`/`name`, whole or not at all, and point `latest` to it.

    Raises:
        FileExistsError: There is a run of this name.
        ValueError: The archive holds anything but files below the directory.
    """
    directory, fresh = root / name, root / f".{name}{UNFINISHED}"
    if directory.exists():
        raise FileExistsError(f"{directory} exists already: a run of this name was unpacked before")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        _unpack(archive, fresh)
        give_back([root, fresh, *fresh.rglob("*")])
        fresh.rename(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    point_latest_at(directory)
    give_back([root / "latest"])
    return directory


def _pack(root: Path, files: Iterable[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1, dereference=True) as archive:
        for each in sorted(set(files)):
            archive.add(each, str(each.relative_to(root)), recursive=False)
    return buffer.getvalue()


def _unpack(archive: bytes, folder: Path) -> None:
    """Unpack an archive that came over a network. Raises ValueError for a member that is no file below `folder`."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            file = folder / member.name
            content = opened.extractfile(member)
            if content is None or not member.isreg() or ".." in file.parts or not file.is_relative_to(folder):
                raise ValueError(f"the archive's member {member.name} is not a file below {folder}")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as written:
                shutil.copyfileobj(content, written)
            file.chmod(0o755 if member.mode & 0o100 else 0o644)
