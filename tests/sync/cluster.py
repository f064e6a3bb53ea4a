"""Members and a controller as processes over loopback. Members die at given phases of a round, and come back.

Every member checks every mean by the slices of the round's result: the error against those members' values in float64,
and that the slices cover the tensor. All members that complete a round must have the same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from testbed import sync
from testbed.controller.client import ControllerClient, ControllerError
from testbed.controller.model.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.planning import Edge, View
from testbed.planning import Member as Site
from testbed.protocol import Job
from testbed.sync.allreduce.round import Round
from tests.program import FORKS, ForkedProgram, preload
from tests.waiting import PATIENCE_S, until

preload("tests.sync.cluster", "testbed.controller.serve")

ELEMENTS = 60_000
#: For float32 sums of nine numbers around 1.
TOLERANCE = 1e-5


def wrapped(original: Callable[..., Any], count: int) -> Callable[[Callable[[], None]], None]:
    """Return a function that lets a call follow the `count`-th call in a round of a method of Round."""

    def arm(then: Callable[[], None]) -> None:
        done: dict[int, int] = {}

        def step(self: Round, *values: Any) -> Any:
            result = original(self, *values)
            done[self.number] = done.get(self.number, 0) + 1
            if done[self.number] == count:
                then()
            return result

        setattr(Round, original.__name__, step)

    return arm


#: The phases of a round in which a member dies.
PHASES: dict[str, Callable[[Callable[[], None]], None]] = {
    "its first chunk is queued": wrapped(Round._send, 1),
    "it has added a partial sum": wrapped(Round._take_partial, 2),
    "it has released a mean as a root": wrapped(Round._release, 1),
    "it has taken and forwarded a mean": wrapped(Round._take_mean, 1),
    "it has taken and forwarded several means": wrapped(Round._take_mean, 5),
    "the round is over for it": wrapped(Round.finish, 1),
}


class Heap(ctypes.Structure):
    """The C library's account of its heap: `mallinfo2`."""

    _fields_ = (
        ("counts", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("unused", ctypes.c_size_t * 2),
        ("in_use", ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("at_the_top", ctypes.c_size_t),
    )


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Heap


def heap_bytes() -> tuple[int, int]:
    """Return the bytes that this process has allocated, and those that are free and kept for it."""
    found = mallinfo2()
    return found.in_use + found.mapped, found.free


class Parameters:
    """A member's parameters, which every mean changes."""

    def __init__(self) -> None:
        self.values = torch.zeros(ELEMENTS)
        self.momentum = torch.zeros(ELEMENTS)

    def step(self, mean: torch.Tensor) -> None:
        self.momentum.mul_(0.9).add_(mean)
        self.values.sub_(self.momentum, alpha=0.1)

    def digest(self) -> str:
        return hashlib.sha256(self.values.numpy().tobytes() + self.momentum.numpy().tobytes()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "momentum": self.momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values.copy_(state["values"])
        self.momentum.copy_(state["momentum"])


def contribution(member: str, round_number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(member[1:]) * 100_003 + round_number)
    values = torch.randn(ELEMENTS, generator=generator)
    values[0] = 0  # the members' flag to end
    return values


def weight(member: str) -> float:
    return 1.0 + int(member[1:]) % 3


def error_of(result: sync.RoundResult) -> float:
    """Return the largest error of a mean over its slices. Asserts that the slices have no gaps."""
    cuts = [0, *(part.stop for part in result.slices)]
    assert [part.start for part in result.slices] == cuts[:-1] and cuts[-1] == ELEMENTS, result.slices
    worst = 0.0
    for part in result.slices:
        assert abs(part.weight - sum(weight(member) for member in part.members)) < 1e-9, part
        total = torch.zeros(part.stop - part.start, dtype=torch.float64)
        for member in part.members:
            values = contribution(member, result.round)[part.start : part.stop]
            total += values.double() * weight(member)
        got = result.tensor[part.start : part.stop].double()
        skip = 1 if part.start == 0 else 0
        worst = max(worst, (got - total / part.weight)[skip:].abs().max().item())
    return worst


def end_with(process: int) -> None:
    """End this process after the process that started the cluster; otherwise a member would train on forever."""
    while Path(f"/proc/{process}").exists():
        time.sleep(1.0)
    os._exit(1)


def member(folder: Path, name: str, step_s: float, orders: Path, owner: int) -> None:
    """Run a member: rounds until all are asked to end. Writes a record of each round.

    When a phase is written into the file `orders`, the member dies in that phase of the next round.
    """
    threading.Thread(target=end_with, args=(owner,), daemon=True).start()
    torch.set_num_threads(1)
    parameters = Parameters()
    control = f"unix:{folder}/control/{name}/control.sock"
    with sync.join(control, name, "127.0.0.1", timeout=PATIENCE_S) as session:
        session.share(parameters=parameters)
        with (folder / f"{name}.jsonl").open("a", buffering=1) as log:
            while True:
                time.sleep(step_s)
                if orders.exists():
                    PHASES[orders.read_text()](lambda: die(folder / f"{name}.died"))
                    orders.unlink()
                values = contribution(name, session.rounds + 1)
                values[0] = float((folder / "end").exists())
                result = session.allreduce(values, weight(name))
                ending = values[0].item() > 0
                parameters.step(result.tensor)
                session.step_done()
                session.report()
                record = {
                    "round": result.round,
                    "epoch": result.epoch,
                    "at_s": time.time(),
                    "digest": parameters.digest(),
                    "error": error_of(result),
                    "slices": [[part.start, part.stop, len(part.members)] for part in result.slices],
                    "heap": heap_bytes(),
                }
                log.write(json.dumps(record) + "\n")
                if ending:
                    break
        session.finish(parameters.digest())


def die(note: Path) -> None:
    note.write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def view_of(names: Sequence[str], seed: int) -> View:
    """Return a full mesh with uneven rates, so that plans have relays."""
    draw = random.Random(seed)
    edges = {(a, b): Edge(draw.uniform(5e6, 155e6), 0.001) for a in names for b in names if a != b}
    sites = tuple(Site(name, site=name, speed=1.0, uplink="", downlink="") for name in names)
    return View(sites, {}, {}, edges, 4 * ELEMENTS, time.time(), "declared")


@dataclass
class Kill:
    """A member's death."""

    member: str
    phase: str
    #: Seconds until the others completed the round.
    recovered_s: float
    #: Seconds from the member's restart until it completed a round again.
    back_s: float
    #: The most slices of the round and the next.
    slices: int


class Cluster:
    """Members and a controller, as processes; a context manager."""

    def __init__(self, folder: Path, count: int, step_s: float, seed: int, quorum: int = 2, lease_s: float = 30.0):
        self.folder = folder
        self.names = tuple(f"m{i}" for i in range(count))
        self.client = ControllerClient(folder / "owner.sock")
        self._step_s = step_s
        jobs = dict.fromkeys(self.names, Job(10**9, round_timeout_s=PATIENCE_S))
        self._spec = ControllerSpec(
            members=self.names,
            secret=secrets.token_hex(8),
            jobs=jobs,
            planning=PlanningSpec(view=view_of(self.names, seed), policy="netstorm"),
            elastic=Elasticity(quorum=quorum, lease_s=lease_s),
        )
        self._members: dict[str, Any] = {}
        self._controller: ForkedProgram | None = None

    def __enter__(self) -> Cluster:
        (self.folder / "spec.json").write_text(self._spec.model_dump_json())
        self.start_controller()
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()
            process.join()
        self.kill_controller()

    def start_controller(self) -> None:
        paths = ["--sockets", self.folder / "control", "--owner", self.folder / "owner.sock"]
        more = ["--spec", self.folder / "spec.json", "--out", self.folder / "out"]
        self._controller = ForkedProgram("-m", "testbed.controller", *map(str, (*paths, *more)))

    def kill_controller(self) -> None:
        assert self._controller is not None
        self._controller.__exit__()

    def start(self, name: str) -> None:
        arguments = (self.folder, name, self._step_s, self.folder / f"{name}.orders", os.getpid())
        self._members[name] = FORKS.Process(target=member, args=arguments, name=name)
        self._members[name].start()

    def pid(self, name: str) -> int:
        return int(self._members[name].pid)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def records(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            with suppress(ValueError):  # the last line, while it is written
                found.append(json.loads(line))
        return found

    def last_round(self, name: str) -> int:
        records = self.records(name)
        return int(records[-1]["round"]) if records else 0

    def await_round(self, number: int, names: Sequence[str] | None = None) -> None:
        self.until(lambda: all(self.last_round(name) >= number for name in names or self.names))

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, self.state)

    def state(self) -> str:
        rounds = {name: self.last_round(name) for name in self.names}
        alive = {name: process.is_alive() for name, process in self._members.items()}
        log = self._controller.said[1].splitlines()[-25:] if self._controller else []
        return "\n".join([f"rounds {rounds}", f"alive {alive}", *log])

    def ended(self, name: str) -> bool:
        return not self._members[name].is_alive()

    def kill(self, name: str, phase: str, restart: bool = True, recovers: bool = True) -> Kill | None:
        """Let a member die in a phase of a round, and wait for its return to a round.

        Args:
            name: The member.
            phase: A key of PHASES.
            restart: Start the member again.
            recovers: Wait until the others complete the round; if not, return None.
        """
        note = self.folder / f"{name}.died"
        note.unlink(missing_ok=True)
        others = [other for other in self.names if other != name]
        (self.folder / f"{name}.orders.new").write_text(phase)
        (self.folder / f"{name}.orders.new").replace(self.folder / f"{name}.orders")
        process = self._members[name]
        self.until(lambda: not process.is_alive())
        if not recovers:
            return None
        died_s, before = float(note.read_text()), self.last_round(name)
        self.await_round(before + 2, others)
        after = [record for record in self.records(others[0]) if record["round"] > before]
        back_s = 0.0
        if restart:
            began = time.time()
            self.start(name)
            self.until(lambda: self.last_round(name) > before + 1)
            back_s = time.time() - began
        slices = max(len(record["slices"]) for record in after[:2])
        first = next(record for record in after if record["at_s"] > died_s)
        return Kill(name, phase, first["at_s"] - died_s, back_s, slices)

    def end(self, left_out: Sequence[str] = ()) -> dict[str, Any]:
        """Let all members finish. Returns the controller's final record."""
        (self.folder / "end").touch()
        self.until(lambda: all(self.ended(name) for name in self.names))
        codes = {name: its.exitcode for name, its in self._members.items() if name not in left_out}
        assert set(codes.values()) == {0}, f"{codes}\n{self.state()}"
        record = self.folder / "out" / "final.json"
        self.until(record.exists)  # members end as soon as they have told the controller that they are done
        final: dict[str, Any] = json.loads(record.read_text())
        return final

    def check(self) -> int:
        """Assert that all members have the same bits and the right mean of each round. Returns the number of rounds."""
        seen: dict[int, tuple[str, str]] = {}
        for name in self.names:
            records = self.records(name)
            assert all(after["round"] > before["round"] for before, after in pairwise(records)), name
            for record in records:
                assert record["error"] <= TOLERANCE, (name, record)
                held = record["digest"], json.dumps(record["slices"])
                assert seen.setdefault(record["round"], held) == held, (name, record)
        assert set(seen) == set(range(1, max(seen) + 1))
        return len(seen)


@contextmanager
def cluster(count: int, step_s: float, seed: int = 1, **settings: Any) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), count, step_s, seed, **settings) as made:
        made.await_round(3)
        yield made


def round_seconds(made: Cluster) -> float:
    at = [record["at_s"] for record in made.records(made.names[0])]
    return median(after - before for before, after in pairwise(at))


def reported(made: Cluster) -> list[dict[str, Any]]:
    """Return the rounds that the controller has seen since its start."""
    try:
        return made.client.rounds()
    except ControllerError:
        return []
