"""Files of other programs, used as the import commands use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.spec.graph import Defaults, import_graph
from testbed.spec.topology import Topology
from testbed.trace.forms import FORMS, ImportedTrace, write_imported
from testbed.trace.forms.pcap import import_capture
from testbed.trace.read import read_trace
from tests.fuzz.files import as_file, replay
from tests.fuzz.target import Target
from tests.trace.forms import captures

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
MATRIX = ",a,b\na,,10\nb,12.5,\n"
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


def use_graph(path: Path) -> None:
    """Import a graph as `topology import` does, and load the result as `up` does."""
    made = path.with_name("made.yaml")
    import_graph(path, made, Defaults(100e6, 10e-3))
    Topology.load(made)


def use_import(read: Callable[[Path], list[ImportedTrace]]) -> Callable[[Path], None]:
    """Return a function that imports a trace as `trace import` does, and replays the result."""

    def use(path: Path) -> None:
        with TemporaryDirectory(dir=path.parent) as folder:
            for made in write_imported(read(path), Path(folder)):
                replay(read_trace(made).trace)

    return use


def use_form(name: str) -> Callable[[Path], None]:
    """Return the same for a form's name."""
    return use_import(FORMS[name].import_file)


TARGETS = (
    Target("gml", as_file("topologies/fuzzed.gml", use_graph), {"plain": GML.encode()}),
    Target("graphml", as_file("topologies/fuzzed.graphml", use_graph), {"plain": GRAPHML.encode()}),
    Target("matrix", as_file("topologies/fuzzed.csv", use_graph), {"plain": MATRIX.encode()}),
    Target(
        "pensieve",
        as_file("traces/fuzzed.txt", use_form("pensieve")),
        {"plain": PENSIEVE.encode()},
    ),
    Target("cellular", as_file("traces/fuzzed.log", use_form("5g-csv")), {"plain": CELLULAR.encode()}),
    Target("rtt-csv", as_file("traces/fuzzed.rtt", use_form("rtt-csv")), {"plain": RTT_CSV.encode()}),
    Target("ping", as_file("traces/fuzzed.ping", use_form("ping")), {"plain": PING.encode()}),
    Target(
        "capture",
        as_file("traces/fuzzed.pcap", use_import(import_capture)),
        {"classic": captures.classic(PACKETS), "blocks": captures.blocks(PACKETS)},
    ),
)
