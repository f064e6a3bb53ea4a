"""Each kind of file that a user writes, used as the commands use it before they build anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice, pairwise, takewhile
from pathlib import Path
from shutil import copytree, ignore_patterns

from testbed.emulation.network.difference import Difference
from testbed.emulation.network.routing import Routes
from testbed.link import MTU_FRAME_BYTES
from testbed.report.trace import facts, sketch, table
from testbed.run.assignments import check_policy
from testbed.run.sweep.sweep import planned_sweep
from testbed.spec.experiment import Experiment
from testbed.spec.sweep import Sweep
from testbed.spec.topology import Topology
from testbed.trace.csv import columns_of, write_csv
from testbed.trace.mahimahi import MOST_PACKETS, schedule_of, write_mahimahi
from testbed.trace.read import read_trace
from testbed.trace.resample import Volume
from testbed.trace.trace import Trace
from tests.fuzz.target import ROOT, Feed, Target, only_clean_errors

#: Larger seeds make the search slow: the time to read a YAML file grows with its length.
MOST_SEED_BYTES = 4096

#: Experiments with many long traces: reading one takes a second or two.
SLOW = ("cpn-12", "cpn-24", "cpn-staggered", "hop-stragglers")

#: Each point of a sweep reads its experiment again: 10 ms, or 100 ms under instrumentation.
MOST_POINTS = 8

#: A trace of more bytes is not written as packets, unless it is beyond the limit: up to the limit it takes seconds.
MANY_BYTES = 1e9

IPERF3 = """{"start": {"test_start": {"protocol": "TCP", "blksize": 131072}}, "intervals": [
{"sum": {"start": 0, "end": 1.0, "bytes": 1200000, "omitted": true}},
{"sum": {"start": 1.0, "end": 2.0, "bytes": 1250000, "omitted": false}},
{"sum": {"start": 2.0, "end": 3.0, "bytes": 1150000, "omitted": false}}]}
"""
MAHIMAHI = "0\n1\n1\n5\n9\n10\n"
SWEEP = """name: swept
experiment: smoke.yaml
axes:
  scale: [1, 0.5]
  plan: {mst: {sync.policy: mst}, roots: {sync.policy: netstorm, sync.options: {roots: 1}}}
seeds: [1, 2]
repeats: 2
"""
OVERRIDES = b"train.rounds=20\nscale=0.5\nsync.policy=netstorm\nevents=[]\ntrain.optimizer={name: sgd}\n"
#: Every field of a topology file that the presets leave out.
RICH_TOPOLOGY = """name: rich
sites: {paris: {workers: 2, speed: 0.5, cpus: 0.5, gpus: 0, memory: 1GB}, tokyo: {workers: 1}, lima: {workers: 0}}
lan: {rate: 1gbit, delay: 0.1ms}
routing: inverse-rate
links:
  - between: [paris, tokyo]
    forward: {rate: 80mbit, delay: 55ms, jitter: 2ms, loss: 0.01%, queue: 1bdp}
    backward: &back {delay: 60ms, trace: {file: ../traces/netstorm9/dc1-dc2.csv, end: stop, scale: 0.5, offset: 10s}}
  - {between: [lima, tokyo], rate: 5mbit, rtt: 40ms, queue: 200packets, backward: *back}
"""


def make_workspace(folder: Path) -> Path:
    """Copy the files that fuzzed files may refer to into a folder, and return the folder."""
    for name in ("topologies", "traces", "experiments", "examples"):
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return folder


def use_trace(path: Path) -> None:
    """Read a trace, print, replay and convert it, as `trace show`, `trace convert` and a run do."""
    found = read_trace(path)
    list(facts(found))
    table(found)
    for column in columns_of(found.trace):
        list(sketch(column))
    replay(found.trace)
    copy = path.with_name("converted.csv")
    write_csv(copy, found.trace)
    with only_clean_errors():
        read_trace(copy)
    with only_clean_errors():
        if not MANY_BYTES < Volume.of_trace(found.trace).total[-1] < MOST_PACKETS * MTU_FRAME_BYTES:
            write_mahimahi(path.with_name("converted.down"), schedule_of(found.trace))


def replay(trace: Trace) -> None:
    """Go through a trace as a run does, forward and to its end."""
    changes = islice(trace.changes(), 3 * len(trace.rows))
    moments = [moment for moment, _ in takewhile(lambda change: change[0] <= 3 * trace.duration_s, changes)]
    assert all(before <= after < math.inf for before, after in pairwise(moments)), "the replay would go back"
    laps = 2 if trace.end == "loop" and not trace.is_steady else 0
    assert moments[-1] >= laps * trace.duration_s - trace.offset_s, "the replay would not go on"


def use_topology(path: Path) -> None:
    """Load a topology and compare it with another, as `up` and `swap` do."""
    topology = Topology.load(path)
    Routes.over(topology)
    Difference.between(Topology.load(path.parent / "smoke.yaml"), topology)
    for link in topology.links.values():
        for moment in (0.0, 1.0, 1e6):
            state = link.at(moment)
            assert 0 < state.rate_bps < math.inf and state.queue_bytes > 0, f"{link.name}: {state}"
        if link.trace:
            replay(link.trace)


def use_experiment(path: Path) -> None:
    """Load an experiment as `run` does."""
    check_policy(Experiment.load(path))


def use_overrides(path: Path) -> None:
    """Load an experiment with the file's lines as overrides, as `run --set` does."""
    with suppress(UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("="))
        check_policy(Experiment.load(path.with_name("smoke.yaml"), pairs))


def use_sweep(path: Path) -> None:
    """Load and plan a sweep, as `sweep` does before its first run."""
    sweep = Sweep.load(path)
    if sweep.spec.points <= MOST_POINTS:
        keys = [run.key for run in planned_sweep(sweep)]
        assert len(set(keys)) == len(keys), "two runs have one key"


def _files(pattern: str) -> dict[str, bytes]:
    """Return the repository's own files that are small enough, by name."""
    found = {path.stem: path.read_bytes() for path in sorted(ROOT.glob(pattern))}
    return {name: data for name, data in found.items() if len(data) <= MOST_SEED_BYTES and name not in SLOW}


def as_file(file: str, use: Callable[[Path], None]) -> Callable[[Path], AbstractContextManager[Feed]]:
    """Return a target's `open`: the input is the content of a file of this name, in a workspace."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Feed]:
        path = make_workspace(folder) / file

        def feed(data: bytes) -> None:
            path.write_bytes(data)
            use(path)

        yield feed

    return opened


TARGETS = (
    Target("csv", as_file("traces/fuzzed.csv", use_trace), _files("traces/netstorm9/dc[1-3]-*.csv")),
    Target("mahimahi", as_file("traces/fuzzed.down", use_trace), {"plain": MAHIMAHI.encode()}),
    Target("iperf3", as_file("traces/fuzzed.json", use_trace), {"plain": IPERF3.encode()}),
    Target(
        "topology",
        as_file("topologies/fuzzed.yaml", use_topology),
        {**_files("topologies/smoke*.yaml"), "rich": RICH_TOPOLOGY.encode()},
    ),
    Target("experiment", as_file("experiments/fuzzed.yaml", use_experiment), _files("experiments/*.yaml")),
    Target("sweep", as_file("experiments/fuzzed.yaml", use_sweep), {"plain": SWEEP.encode()}),
    Target("overrides", as_file("experiments/fuzzed.set", use_overrides), {"plain": OVERRIDES}),
)
