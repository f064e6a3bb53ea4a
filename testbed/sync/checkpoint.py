"""Checkpoints: a member's state between two steps in one file that holds tensors and plain values, and no code."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast

import torch

from testbed.atomic_file import replacing
from testbed.plan import Plan, PlanError
from testbed.sync.errors import CheckpointError

VERSION = 1


class Stateful(Protocol):
    """An object that can be saved: a module, an optimizer, a strategy."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore a state that `state_dict` returned."""


@dataclass(frozen=True, slots=True)
class StateDictFns:
    """A part of a member's state that two functions give and take; it is Stateful."""

    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A member's saved state, as `sync.load` returns it.

    A member that restores it and continues with the next round, with the same data and under the same plan, gets the
    same bits as without the interruption, if the order of additions is the same (two members, or a reproducible run).
    The DDP hook's residuals are not saved.
    """

    #: The last completed round.
    round: int
    #: The plan of that round.
    plan: Plan
    #: The states by the parts' names.
    parts: Mapping[str, Mapping[str, Any]]

    @property
    def epoch(self) -> int:
        """The epoch of the plan."""
        return self.plan.epoch

    def restore(self, **parts: Stateful) -> None:
        """Restore the parts, in the order given: the model first, then the optimizer and the strategy.

        Args:
            **parts: The objects to restore, by the names under which they were saved.

        Raises:
            CheckpointError: The names are not those of the checkpoint (rule `parts`), or a part does not take its state
                (rule `state`), as where the model has other layers. Parts before that one are restored.
        """
        if missing := sorted(set(parts) ^ set(self.parts)):
            raise CheckpointError(
                f"the checkpoint has the parts {sorted(self.parts)}, and {sorted(parts)} were given: give exactly the "
                f"saved parts (these differ: {missing})",
                rule="parts",
                given=sorted(parts),
            )
        for name, part in parts.items():
            try:
                part.load_state_dict(self.parts[name])
            except Exception as error:  # a part may raise anything: it is the program's own
                raise CheckpointError(
                    f"the checkpoint's state of {name!r} does not fit the {name} that was given: {error!r}. Make it "
                    "with the same arguments as the saved one",
                    rule="state",
                    given=name,
                ) from error


def save(path: Path, round_number: int, plan: Plan, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a checkpoint. The file appears whole or not at all, even if the power fails.

    Args:
        path: The file to write.
        round_number: The last completed round.
        plan: The plan of that round.
        states: The states of the parts by name. Those of a module and an optimizer refer to their tensors.

    Raises:
        OSError: The file can't be written: its folder is missing, or the disk is full. Names the file.
        CheckpointError: A state holds more than tensors and plain values, which `load` would refuse. An earlier file
            of this name stays.
    """
    value = {"version": VERSION, "round": round_number, "plan": plan.dumps(), "parts": dict(states)}
    with replacing(path) as file:
        output = _Output(file)
        torch.save(value, cast("IO[bytes]", output))
        if output.error is not None:
            raise output.error
        file.flush()
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe or a device can't be read again
            _check_plain(path, f"/proc/self/fd/{file.fileno()}")


def _check_plain(path: Path, written: str) -> None:
    """Raise CheckpointError if `load` would refuse the states in the file `written`. Reads no tensor."""
    try:
        torch.load(written, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was not written: a state holds more than tensors and plain values, such as a number of NumPy or a "
            "path; leave it out, or turn it into a plain value",
            rule="not-plain",
            file=path,
        ) from error


class _Output:
    """A file for `torch.save`, which turns the error of a write into one without its cause.

    Attributes:
        error: The first error; what is written after it is dropped.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        """Write the bytes, unless an earlier write failed."""
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is complete."""


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint. Loading runs no code from the file.

    Args:
        path: A file that `Session.save` wrote. Its tensors are loaded to the host.

    Raises:
        OSError: The file does not exist or can't be read; names it.
        CheckpointError: The file is not a checkpoint, is damaged, or has another version.
    """
    path = Path(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load may raise anything on bytes that are no checkpoint
        raise CheckpointError(f"{path} is not a checkpoint: {error}", rule="no-checkpoint", file=path) from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise CheckpointError(f"{path} is not a checkpoint of version {VERSION}", rule="no-checkpoint", file=path)
    try:
        plan = Plan.from_json(json.loads(value["plan"]))
        return Checkpoint(int(value["round"]), plan, value["parts"])
    except (KeyError, TypeError, ValueError, PlanError) as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error!r}", rule="no-checkpoint", file=path) from error
