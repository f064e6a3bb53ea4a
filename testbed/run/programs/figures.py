"""What the programs of an experiment leave: the figures that they say of themselves, and their files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from testbed.emulation.network.node import ContainerHost
from testbed.launch.result_files import CopiedFiles, copy_results
from testbed.run.directory import RunDirectory
from testbed.telemetry.printed_metrics import Figures, figures_in
from testbed.telemetry.tensorboard import EVENTS, read_figures

#: The figures that programs gave of themselves.
CURVES = "curves.jsonl"


class ProgramFigures:
    """Kept in a run's directory."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def hear(self, program: str, line: str) -> None:
        """A program has printed a line, which may have figures."""
        if (figures := figures_in(line)) is not None:
            self._keep(program, figures)

    def take(self, worker: str, node: ContainerHost) -> CopiedFiles:
        """Copy what a worker's programs left, and keep the figures in it. Return what was copied."""
        target = self._directory.path / "out" / worker
        kept = copy_results(node.holder, target)
        for file in sorted(target.rglob(EVENTS)):
            for figures in read_figures(file):
                self._keep(worker, figures)
        return kept

    def _keep(self, name: str, figures: Figures) -> None:
        at_s = time.time() if figures.at_s is None else figures.at_s
        record: Mapping[str, Any] = {"at_s": at_s, "program": name, "step": figures.step, "values": figures.values}
        self._directory.append(CURVES, record)
