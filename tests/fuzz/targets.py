"""What is fuzzed: each kind of file that a user writes, used as the verbs use it before they build anything, and what
members and controllers say to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from shutil import copytree, ignore_patterns

import testbed
from testbed.emulation.difference import Difference
from testbed.emulation.routing import Routes
from testbed.link import MTU_FRAME_BYTES
from testbed.protocol import (
    CommitGraph,
    ControlMessage,
    Hello,
    Holding,
    Job,
    MeanSlice,
    NodeConfiguration,
    PeerSample,
    ProtocolError,
    Reconfigure,
    Report,
    Train,
    Welcome,
    decode,
    encode,
)
from testbed.report.trace import facts, sketch, table
from testbed.run.assignments import check_policy
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.graph import Defaults, import_graph
from testbed.spec.topology import Topology
from testbed.trace.csv import read_csv, write_csv
from testbed.trace.facts import columns_of
from testbed.trace.importing import (
    ImportedTrace,
    import_capture,
    import_cellular,
    import_pensieve,
    import_ping,
    import_rtt_csv,
    write_imported,
)
from testbed.trace.mahimahi import MOST_PACKETS, schedule_of, write_mahimahi
from testbed.trace.read import read_trace
from testbed.trace.trace import Trace, TraceError
from testbed.trace.volume import Volume
from tests.trace.forms import captures

ROOT = Path(testbed.__file__).parents[1]

#: What the command line turns into words and exit code 2, and what ends who said it. Anything else is a finding.
CLEAN = (SpecError, TraceError, ProtocolError)

#: Larger seeds make the search slow: the time to read a YAML file grows with its length.
MOST_SEED_BYTES = 4096

#: What it takes a second to write as packets is not tried: up to the limit it is slow, but right.
MANY_BYTES = 1e9

GML = """graph [
  node [ id 0 label "Paris" Latitude 48.9 Longitude 2.4 ]
  node [ id 1 label "London" Latitude 51.5 Longitude -0.1 ]
  edge [ source 0 target 1 distance 344.0 LinkSpeedRaw 1000000000.0 ]
]
"""
GRAPHML = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="Latitude" attr.type="double" for="node" id="d0" />
<key attr.name="Longitude" attr.type="double" for="node" id="d1" />
<key attr.name="distance" attr.type="double" for="edge" id="d2" />
<graph edgedefault="undirected">
<node id="0"><data key="d0">48.9</data><data key="d1">2.4</data></node>
<node id="1"><data key="d0">51.5</data><data key="d1">-0.1</data></node>
<edge source="0" target="1"><data key="d2">344.0</data></edge>
</graph></graphml>
"""
IPERF3 = """{"start": {"test_start": {"protocol": "TCP", "blksize": 131072}}, "intervals": [
{"sum": {"start": 0, "end": 1.0, "bytes": 1200000, "omitted": true}},
{"sum": {"start": 1.0, "end": 2.0, "bytes": 1250000, "omitted": false}},
{"sum": {"start": 2.0, "end": 3.0, "bytes": 1150000, "omitted": false}}]}
"""
PENSIEVE = "0.0\t1.5\n0.93\t2.75\n2.04 0.5\n"
CELLULAR = """Timestamp,Speed,DL_bitrate,UL_bitrate,PINGAVG
2019.12.14_10.16.30,3,27431,312,42.5
2019.12.14_10.16.31,3,30431,-,-
2019-12-14T10:16:35.5,3,0,280,60
"""
RTT_CSV = "timestamp_ns,rtt\n1700000000000000123,42.1\n1700000000020000123,-1\n1700000001020000123,38.25\n"
PING = """[1700000000.100000] 64 bytes from 10.0.0.2: icmp_seq=1 ttl=54 time=42.1 ms
[1700000000.300000] no answer yet for icmp_seq=2
[1700000000.500000] 64 bytes from 10.0.0.2: icmp_seq=3 ttl=54 time=41 ms
4 packets transmitted, 2 received, 50% packet loss, time 600ms
"""
PACKETS = [
    (captures.BEGIN_NS + ms * 10**6, 1514, captures.frame(captures.ip("10.0.0.1", "10.0.0.2"))) for ms in range(20)
]
MAHIMAHI = "0\n1\n1\n5\n9\n10\n"
ROSTER = {"a": ("10.0.0.2", 4000), "b": ("10.0.0.3", 4000)}
PLACE = NodeConfiguration("hop", ("b",), ("b",), {"a": 0.5, "b": 0.5}, ("b",), {"max_ig": 4})
MESSAGES: Mapping[str, ControlMessage] = {
    "hello": Hello("a", ROSTER["a"], token="secret"),
    "welcome": Welcome(
        Job(9, options={"every": 8}), ROSTER, {"epoch": 1, "trees": [{"keys": [0.5]}]}, {"b": "0f" * 32}, 5.0, "b"
    ),
    "report": Report(
        *("a", 3, 1, 1.5, 2.5, 0.1, 0.2, 10, 20, 0, 1),
        waited={"b": 0.25},
        peers=(PeerSample("b", 1000, 0.5, 0.04, 2),),
        metrics={"loss": 0.5},
        slices=(MeanSlice(0, 9, ("a", "b"), 2.0),),
        arrivals={"b": (Train(1.5, 0.01, 65536),)},
    ),
    "reconfigure": Reconfigure({"epoch": 4}, ROSTER, (Holding("a", 4, 7, False, 9, ((0, 4),)),)),
    "commit": CommitGraph(5, PLACE, ROSTER),
}
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


@contextmanager
def only_clean_errors() -> Iterator[None]:
    """Lets go what the command line would say in words."""
    with suppress(*CLEAN):
        yield


@dataclass(frozen=True)
class Target:
    """A kind of file: its name in a workspace, what is done with it there, and files to begin with."""

    name: str
    file: Path
    use: Callable[[Path], None]
    seeds: Mapping[str, bytes]

    def feed(self, workspace: Path, data: bytes) -> None:
        """Use the file with this content. Raises what the command line would not turn into words."""
        path = workspace / self.file
        path.write_bytes(data)
        with only_clean_errors():
            self.use(path)


def make_workspace(folder: Path) -> Path:
    """A copy of what fuzzed files may refer to."""
    for name in ("topologies", "traces", "experiments"):
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return folder


def use_trace(path: Path) -> None:
    """As `trace show`, `trace convert` and the replay do."""
    found = read_trace(path)
    list(facts(found))
    table(found)
    for column in columns_of(found.trace):
        list(sketch(column))
    _replay(found.trace)
    copy = path.with_name("converted.csv")
    write_csv(copy, found.trace)
    with only_clean_errors():
        read_csv(copy)
    with only_clean_errors():
        if not MANY_BYTES < Volume.of_trace(found.trace).total[-1] < MOST_PACKETS * MTU_FRAME_BYTES:
            write_mahimahi(path.with_name("converted.down"), schedule_of(found.trace))


def use_import(read: Callable[[Path], list[ImportedTrace]]) -> Callable[[Path], None]:
    """As `trace import` does, and what it made as a replay does."""

    def use(path: Path) -> None:
        folder = path.parent / "imported"
        folder.mkdir(exist_ok=True)
        for made in write_imported(read(path), [path], folder):
            _replay(read_csv(made))

    return use


def _replay(trace: Trace) -> None:
    moments = [moment for moment, _ in islice(trace.changes(), 3 * len(trace.rows))]
    assert all(before <= after < math.inf for before, after in pairwise(moments)), "the replay would go back"
    laps = 2 if trace.end == "loop" and len(trace.rows) > 1 else 0
    assert moments[-1] >= laps * trace.duration_s - trace.offset_s, "the replay would not go on"


def use_topology(path: Path) -> None:
    """As `up` and `swap` do."""
    topology = Topology.load(path)
    Routes.over(topology)
    Difference.between(Topology.load(path.parent / "smoke.yaml"), topology)
    for link in topology.links.values():
        for moment in (0.0, 1.0, 1e6):
            state = link.at(moment)
            assert 0 < state.rate_bps < math.inf and state.queue_bytes > 0, f"{link.name}: {state}"
        if link.trace:
            _replay(link.trace)


def use_graph(path: Path) -> None:
    """As `topology import` does, and what it made as `up` does."""
    made = path.with_name("made.yaml")
    import_graph(path, made, Defaults(100e6, 10e-3))
    Topology.load(made)


def use_experiment(path: Path) -> None:
    """As `run` does."""
    check_policy(Experiment.load(path))


def use_overrides(path: Path) -> None:
    """As `run --set` does with the lines of the file."""
    with suppress(UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("="))
        check_policy(Experiment.load(path.with_name("smoke.yaml"), pairs))


def use_message(path: Path) -> None:
    """As who receives a line does."""
    message = decode(path.read_bytes())
    assert decode(encode(message)) == message


def _files(pattern: str) -> dict[str, bytes]:
    """The repository's own files that are small enough, without their comments."""
    found = {path.stem: path.read_bytes() for path in sorted(ROOT.glob(pattern))}
    return {name: data for name, data in found.items() if len(data) <= MOST_SEED_BYTES}


TARGETS = {
    target.name: target
    for target in (
        Target("csv", Path("traces/fuzzed.csv"), use_trace, _files("traces/netstorm9/dc[1-3]-*.csv")),
        Target("mahimahi", Path("traces/fuzzed.down"), use_trace, {"plain": MAHIMAHI.encode()}),
        Target("iperf3", Path("traces/fuzzed.json"), use_trace, {"plain": IPERF3.encode()}),
        Target(
            "topology",
            Path("topologies/fuzzed.yaml"),
            use_topology,
            {**_files("topologies/smoke*.yaml"), "rich": RICH_TOPOLOGY.encode()},
        ),
        Target("gml", Path("topologies/fuzzed.gml"), use_graph, {"plain": GML.encode()}),
        Target("graphml", Path("topologies/fuzzed.graphml"), use_graph, {"plain": GRAPHML.encode()}),
        Target("matrix", Path("topologies/fuzzed.csv"), use_graph, {"plain": b",a,b\na,,10\nb,12.5,\n"}),
        Target("pensieve", Path("traces/fuzzed.txt"), use_import(import_pensieve), {"plain": PENSIEVE.encode()}),
        Target("cellular", Path("traces/fuzzed.log"), use_import(import_cellular), {"plain": CELLULAR.encode()}),
        Target("rtt-csv", Path("traces/fuzzed.rtt"), use_import(import_rtt_csv), {"plain": RTT_CSV.encode()}),
        Target("ping", Path("traces/fuzzed.ping"), use_import(import_ping), {"plain": PING.encode()}),
        Target(
            "capture",
            Path("traces/fuzzed.pcap"),
            use_import(import_capture),
            {"classic": captures.classic(PACKETS), "blocks": captures.blocks(PACKETS)},
        ),
        Target("experiment", Path("experiments/fuzzed.yaml"), use_experiment, _files("experiments/*.yaml")),
        Target(
            "overrides",
            Path("experiments/fuzzed.set"),
            use_overrides,
            {"plain": b"train.rounds=20\nscale=0.5\nsync.policy=netstorm\nevents=[]\ntrain.optimizer={name: sgd}\n"},
        ),
        Target(
            "message",
            Path("message.json"),
            use_message,
            {name: encode(message) for name, message in MESSAGES.items()},
        ),
    )
}
