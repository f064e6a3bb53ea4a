"""Planted bugs: patches of the product that the checker must find, each switched on by name.

Each bug strikes once, in the round or at the moment that a seed draws.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tests.chaos.surroundings import foreign_name

#: A bug in a member strikes in one of these rounds.
ROUNDS = range(2, 6)


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug of BUGS, with the seed that draws its round."""

    name: str
    seed: int

    @property
    def round(self) -> int:
        """The round in which the bug strikes."""
        return random.Random(f"{self.seed} {self.name}").choice(ROUNDS)

    def plant_in_member(self) -> None:
        """Patch this process, which is a member's."""
        if self.name in IN_MEMBERS:
            IN_MEMBERS[self.name](self.round)

    def plant_in_owner(self) -> None:
        """Patch this process, which is the run's."""
        if self.name in IN_OWNER:
            IN_OWNER[self.name](self.round)


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Call `wrapper(original, *arguments)` instead of a function."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(lambda *arguments, **more: wrapper(original, *arguments, **more)))


class Rounds:
    """Tracks a member's current round."""

    def __init__(self) -> None:
        from testbed.sync.session import Session

        self.now = 0
        wrap(Session, "_begin", self._begin)

    def _begin(self, original: Callable[..., Any], session: Any, *arguments: Any, **more: Any) -> Any:
        self.now = session.rounds + 1
        return original(session, *arguments, **more)


def counted_twice(number: int) -> None:
    """Add a child's partial sum a second time, from a round on."""
    from testbed.sync.allreduce.chunk import ChunkReduction

    rounds = Rounds()

    def add_again(original: Callable[..., None], chunk: Any, partial: Any) -> None:
        original(chunk, partial)
        if rounds.now >= number:
            chunk.sum.add_(chunk._scaled(partial.values, partial.scale))

    wrap(ChunkReduction, "_sum", add_again)


def dropped(number: int) -> None:
    """Count a child's partial sum as added without adding it, from a round on."""
    from testbed.sync.allreduce.chunk import ChunkReduction

    rounds = Rounds()

    def add_nothing(original: Callable[..., None], chunk: Any, partial: Any) -> None:
        original(chunk, partial._replace(values=partial.values * 0) if rounds.now >= number else partial)

    wrap(ChunkReduction, "_sum", add_nothing)


def wrong_bit(number: int) -> None:
    """Flip the lowest bit of a mean's first element, in one round, at members that take the mean from a peer."""
    import torch

    from testbed.sync.allreduce.chunk import ChunkReduction

    rounds = Rounds()

    def flip(original: Callable[..., bool], chunk: Any, part: Any, mean: torch.Tensor) -> bool:
        taken = original(chunk, part, mean)
        if taken and rounds.now == number and chunk._role.mean_from is not None:
            chunk._local.values.view(torch.int32)[0] ^= 1
        return taken

    wrap(ChunkReduction, "accept", flip)


def container_left(_: int) -> None:
    """Leave one worker's container behind."""
    from testbed.emulation import cleanup
    from testbed.emulation.containers import fleet as containers

    kept: list[str] = []

    def all_but_one(original: Callable[..., None], container: Any) -> None:
        if not kept:
            kept.append(container.name)
        if container.name not in kept:
            original(container)

    wrap(containers, "_remove", all_but_one)
    vars(cleanup)["remove_containers"] = containers.remove_containers


def swallowed_error(_: int) -> None:
    """Report a run as done that the controller calls failed."""
    from testbed.run.watchdog import Watchdog

    def call_it_done(original: Callable[..., Any], watchdog: Watchdog) -> Any:
        status = original(watchdog)
        if status is not None and status["state"] == "failed":
            status["state"] = "done"
        return status

    wrap(Watchdog, "status", call_it_done)


def hang(number: int) -> None:
    """Block the run from a round on."""
    from testbed.run.watchdog import Watchdog

    def wait(original: Callable[..., Any], watchdog: Watchdog) -> Any:
        status = original(watchdog)
        if status is not None and (status["round"] or 0) >= number:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the guard's alarm must not end the run either
            while True:
                signal.pause()
        return status

    wrap(Watchdog, "status", wait)


def foreign_touched(_: int) -> None:
    """Change an interface that is not the run's, when its network is removed."""
    from testbed.emulation import cleanup

    def sweep_too_much(original: Callable[..., None], *arguments: Any) -> None:
        original(*arguments)
        subprocess.run(["ip", "link", "set", foreign_name(os.getppid()), "mtu", "1400"], check=False)

    wrap(cleanup, "sweep", sweep_too_much)


IN_MEMBERS: dict[str, Callable[[int], None]] = {
    "counted-twice": counted_twice,
    "dropped": dropped,
    "wrong-bit": wrong_bit,
}
IN_OWNER: dict[str, Callable[[int], None]] = {
    "container-left": container_left,
    "swallowed-error": swallowed_error,
    "hang": hang,
    "foreign-touched": foreign_touched,
}
#: Each bug, and the rule of checker.py that is to find it.
BUGS = {
    "counted-twice": "means_are_right",
    "dropped": "means_are_right",
    "wrong-bit": "members_hold_the_same_bits",
    "container-left": "nothing_is_left",
    "swallowed-error": "rounds_are_all_there",
    "hang": "ends",
    "foreign-touched": "nothing_foreign_is_touched",
}
#: Bugs that show only in containers, and bugs that show only when a member dies.
NEED_CONTAINERS = ("container-left",)
NEED_A_DEATH = ("swallowed-error",)
