"""Runs on the hosts of a cluster, each host one at a time.

waiting ──> a task, as soon as a host is free ──> whole directory here: counts
   ^                        │
   └──── its host is lost ──┘
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.run.directory import RUNS, give_back
from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.planned_run import PlannedRun
from testbed.run.sweep.sweep import Watcher
from testbed.scaleout.agent import MadeRun
from testbed.scaleout.bundle import Bundle, unpack_run
from testbed.scaleout.ray_client import connected, hosts_alive, run_task
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import write_json

#: How often it is looked whether hosts came or went, in seconds.
LOOK_S = 1.0
#: Of a run that was lost so often with its host, the host is not to blame.
MOST_LOSSES = 3
#: What `testbed run` ends with where it came to a verdict, or failed at it: neither bad input nor a machine that can't.
CAME_TO_AN_END = (0, 1)


class OnRay:
    """Makes runs on the cluster that is up here."""

    def __init__(self, strict: bool, root: Path = RUNS) -> None:
        self._strict = strict
        self._root = root

    def __call__(
        self, file: Path, runs: Sequence[PlannedRun], watcher: Watcher
    ) -> Iterator[tuple[PlannedRun, Executed]]:
        """Make the runs, as many at once as there are hosts. What a lost host took is made again.

        CannotRun when no host is left, or one can't make runs at all.
        """
        if not runs:
            return
        with connected() as ray:
            waiting, running, losses = deque(runs), dict[Any, PlannedRun](), Counter[str]()
            task = run_task(ray)
            try:
                while waiting or running:
                    free = len(hosts := hosts_alive(ray)) - len(running)
                    if not hosts and not running:
                        raise CannotRun("no host of the cluster is left; see `testbed cluster doctor`")
                    for run in [waiting.popleft() for _ in range(min(free, len(waiting)))]:
                        watcher.begin(run)
                        bundle = Bundle.of(Experiment.load(file, run.overrides))
                        running[task.remote(bundle, run.overrides, self._strict)] = run
                    done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_S)
                    for reference in done:
                        run = running.pop(reference)
                        try:
                            made = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            raise CannotRun(f"{run.words}: {error}") from error
                        except ray.exceptions.RayError as error:
                            losses[run.key] += 1
                            if losses[run.key] == MOST_LOSSES:
                                text = f"{run.words}: it was lost with its host {MOST_LOSSES} times; the last: {error}"
                                raise CannotRun(text) from error
                            watcher.lost(run)
                            waiting.appendleft(run)
                            continue
                        executed = self._received(run, made)
                        watcher.end(run, executed)
                        yield run, executed
            finally:
                for reference in running:
                    ray.cancel(reference)

    def _received(self, run: PlannedRun, made: MadeRun) -> Executed:
        """What a host made, once its directory is here."""
        if made.name is None or made.code not in CAME_TO_AN_END:
            raise CannotRun(f"{made.host} can't make {run.words} (`testbed run` ended with {made.code}):\n{made.said}")
        directory = unpack_run(made.archive, self._root, made.name)
        manifest, page = directory / "manifest.json", directory / "report.html"
        write_json(manifest, {**_read(manifest), "made_on": made.host})
        give_back([manifest])
        summary = _read(directory / "summary.json")
        finished = summary["training"]["wall_seconds"] is not None
        return Executed(finished, summary["verdict"], directory, page if page.exists() else None)


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))
