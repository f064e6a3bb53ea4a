"""The models of members in this process: real ones, or small ones that learn nothing in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from testbed.emulation.containers import documentation
from testbed.emulation.containers.image import digits_folder
from testbed.worker import learner
from testbed.worker.device import chosen_device
from testbed.worker.learner import Learner, Synthetic
from testbed.workload import Workload

#: Elements of a model that learns nothing at most: enough that a share of 0.005 of them is one within 0.2 %.
MOST_ELEMENTS = 65_536

MakeLearner = Callable[[Workload], Learner]


@contextmanager
def real_learners() -> Iterator[MakeLearner]:
    """Makes what workloads ask for, while inside; ValueError when a data set is missing. EmulationError when the digits
    cannot be made."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        (Path(folder) / "digits").symlink_to(digits_folder())
        documentation.link_into(Path(folder))
        yield lambda work: learner.make(work, Path(folder), chosen_device(work.device))


def small_learner(work: Workload, elements: int) -> Learner:
    """In place of a model of so many elements."""
    torch.set_num_threads(1)
    few = min(elements, MOST_ELEMENTS)
    return Synthetic(replace(work, model="synthetic", parameters=few, optimizer="sgd"), torch.device("cpu"))
