from __future__ import annotations

import filecmp
import runpy
import tempfile
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from testbed.cli import BAD_INPUT, app
from testbed.spec.errors import SpecError
from testbed.spec.graph import Defaults, import_graph, read_graph
from testbed.spec.graph.links import delay_ms
from testbed.spec.topology import MAX_SITES, Topology
from tests.recorded import RECORDED, needs_recorded

pytestmark = pytest.mark.pure

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
SAMPLES = Path(__file__).parent / "samples"

PARIS, TOKYO = {"Latitude": 48.8566, "Longitude": 2.3522}, {"Latitude": 35.6764, "Longitude": 139.65}


def graph() -> nx.Graph:
    """Three sites by their names: as GML, nodes 0 to 2."""
    made = nx.Graph()
    made.add_node("Paris", **PARIS)
    made.add_node("Tokyo", **TOKYO)
    made.add_edge("Paris", "Tokyo")
    made.add_edge("Paris", "Saint-Louis, Missouri", distance=1000.0, capacity=3e8)
    return made


def written(made: nx.Graph, folder: Path, suffix: str) -> Path:
    file = folder / f"graph{suffix}"
    (nx.write_gml if suffix == ".gml" else nx.write_graphml)(made, file)
    return file


def test_an_edge_may_name_node_1_as_a_decimal(tmp_path: Path) -> None:
    file = tmp_path / "graph.gml"
    file.write_text("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1.0 ] ]")
    assert [(edge.source, edge.target) for edge in read_graph(file).edges] == [("0", "1")]


@pytest.mark.parametrize("suffix", [".gml", ".graphml"])
def test_a_graph_becomes_a_topology(suffix: str, tmp_path: Path) -> None:
    import_graph(written(graph(), tmp_path, suffix), tmp_path / "net.yaml", Defaults(50e6), 2)
    topology = Topology.load(tmp_path / "net.yaml")
    assert topology.name == "net"
    assert list(topology.sites) == ["paris", "tokyo", "saint-louis"]
    assert {site.workers for site in topology.sites.values()} == {2}
    measured, given_ = topology.links["paris->tokyo"].state, topology.links["saint-louis->paris"].state
    assert measured.delay_s == pytest.approx((0.0085 * 9712 + 4) / 1e3, rel=0.002)  # 9,712 km by any atlas
    assert measured.rate_bps == 50e6
    assert (given_.delay_s, given_.rate_bps) == (0.0125, 300e6)


@pytest.mark.parametrize("name", ["stra\udcdfe.gml", "a\nb.gml"], ids=["latin-1", "lines"])
def test_a_graph_s_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    file = written(graph(), tmp_path, ".gml").rename(tmp_path / name)
    import_graph(file, tmp_path / "net.yaml", Defaults(50e6))
    assert Topology.load(tmp_path / "net.yaml").name == "net"


@pytest.mark.parametrize("name", ["rtt_min", "latencyMin", "jitter (min)"])
def test_the_least_of_several_is_not_in_minutes(name: str, tmp_path: Path) -> None:
    made = nx.Graph()
    made.add_edge("a", "b", distance=100.0, **{name: 0.8})
    found = import_graph(written(made, tmp_path, ".graphml"), tmp_path / "net.yaml", Defaults(1e6))
    state = found.topology.links["a->b"].state
    assert (state.delay_s, state.jitter_s) == (pytest.approx(delay_ms(100) / 1e3), 0)
    assert found.notes[0] == f"Not read: `{name}` of 1 edges."


def test_the_shorter_of_parallel_edges_counts_and_loops_do_not(tmp_path: Path) -> None:
    made = nx.MultiDiGraph([(0, 1, {"distance": 900}), (1, 0, {"distance": 100}), (0, 0, {"distance": 5})])
    found = import_graph(written(made, tmp_path, ".graphml"), tmp_path / "net.yaml", Defaults(1e6))
    assert found.topology.links["site-1->site-0"].state.delay_s == pytest.approx(delay_ms(100) / 1e3, rel=1e-5)
    assert {site.workers for site in found.topology.sites.values()} == {1}
    assert found.notes[0] == "Left out, since another edge between the same nodes is as short: 1 of 2 edges."


#: Sample → (sites; links with their delay in ms, one way, and rate in Mbit/s; what the notes say).
SAMPLE_FILES: dict[str, tuple[list[str], dict[str, tuple[float, float]], list[str]]] = {
    "zoo.gml": (
        ["dublin", "none", "galway", "cork", "none-2"],
        {"dublin->none": (4.936, 10_000), "none->cork": (4.936, 100), "cork->none-2": (4, 0.064)},
        [
            "2 labels become the same name: 'None' is none, 'None' is none-2.",
            "Without a position, and counted as being amid their neighbours: None, None.",
            "Without a rate, and with 100 Mbit/s: 1 of 4 links.",
            "With a rate that no link has here, and the nearest in 64 kbit/s to 100 Gbit/s: 1 of 4 links.",
        ],
    ),
    "zoo.graphml": (
        ["suva", "amid-both", "apia"],
        {"suva->amid-both": (8.89, 100_000), "amid-both->apia": (8.89, 2500)},
        [
            "Without a position, and counted as being amid their neighbours: Amid both.",
            "With a rate that no link has here, and the nearest in 64 kbit/s to 100 Gbit/s: 1 of 2 links.",
        ],
    ),
    "parallel.gml": (
        ["paris", "lyon"],
        {"paris->lyon": (4.85425, 400)},
        ["Left out, since another edge between the same nodes is as short: 2 of 3 edges."],
    ),
    "multigraph.gml": (
        ["site-0", "site-1"],
        {"site-0->site-1": (5.19, 100)},
        [
            "Left out, since another edge between the same nodes is as short: 2 of 3 edges.",
            "Without a rate, and with 100 Mbit/s: 1 of 1 links.",
        ],
    ),
    "rocketfuel.gml": (
        ["santa-clara", "santa-clara-3", "san-jose", "santa-clara-2"],
        {"santa-clara->santa-clara-3": (1, 100), "santa-clara-3->san-jose": (2.5, 100)},
        [
            "Not read: `weight` of 3 edges.",
            "2 labels become the same name: 'Santa+Clara,+CA389' is santa-clara, "
            "'Santa+Clara,+CA444' is santa-clara-3.",
            "Without a rate, and with 100 Mbit/s: 3 of 3 links.",
        ],
    ),
    "rocketfuel.graphml": (
        ["palo-alto", "palo-alto-2", "palo-alto-3"],
        {"palo-alto->palo-alto-2": (7, 100)},
        [
            "Not read: `weight` of 2 edges.",
            "3 labels become the same name: 'Palo+Alto,+CA7' is palo-alto, 'Palo+Alto,+CA8' is palo-alto-2, "
            "'Palo+Alto,+CA9' is palo-alto-3.",
            "Without a length or positions, and with the delay that was asked for: 2 links.",
            "Without a rate, and with 100 Mbit/s: 2 of 2 links.",
        ],
    ),
    "components.gml": (
        ["oslo", "bergen", "hamar"],
        {"oslo->bergen": (6.55, 100)},
        [
            "The graph has 3 components: no edge joins the largest, of 3 nodes, and the others, of 3: Lima, Quito, "
            "Alone. The largest is taken.",
            "Without a rate, and with 100 Mbit/s: 2 of 2 links.",
        ],
    ),
    "yed.graphml": (
        ["helsinki", "arhus"],
        {"helsinki->arhus": (7, 100)},
        [
            "Not read: `label` of 1 edges.",
            "Left out, since another edge between the same nodes is as short: 1 of 2 edges.",
            "Without a length or positions, and with the delay that was asked for: 1 link.",
            "Without a rate, and with 100 Mbit/s: 1 of 1 links.",
        ],
    ),
    "latin1.gml": (
        ["munchen", "koln-messe"],
        {"munchen->koln-messe": (7.88, 100)},
        ["Without a rate, and with 100 Mbit/s: 1 of 1 links."],
    ),
    "full.csv": (
        ["dallas", "toronto", "washington"],
        {"dallas->toronto": (17, 100), "dallas->washington": (15.75, 100), "washington->toronto": (9.5, 100)},
        ["Without a rate, and with 100 Mbit/s: 3 of 3 links."],
    ),
    "holes.csv": (
        ["paris", "lima", "tokyo"],
        {"paris->lima": (95.25, 100), "tokyo->paris": (111, 100)},
        ["Without a rate, and with 100 Mbit/s: 2 of 2 links."],
    ),
    "components.csv": (
        ["c", "d", "e"],
        {"c->d": (2.5, 100), "e->d": (3.5, 100)},
        [
            "The graph has 2 components: no edge joins the largest, of 3 nodes, and the others, of 2: a, b. "
            "The largest is taken.",
            "Without a rate, and with 100 Mbit/s: 2 of 2 links.",
        ],
    ),
}


@pytest.mark.parametrize("name", SAMPLE_FILES)
def test_each_oddity_imports_and_is_said(name: str, tmp_path: Path) -> None:
    sites, links, notes = SAMPLE_FILES[name]
    target = tmp_path / "net.yaml"
    found = import_graph(SAMPLES / name, target, Defaults(100e6, 7e-3))
    topology = Topology.load(target)
    assert list(topology.sites) == sites
    states = {link: topology.links[link].state for link in links}
    assert {link: state.delay_s * 1e3 for link, state in states.items()} == {
        link: pytest.approx(delay, abs=0.05) for link, (delay, _) in links.items()
    }
    assert {link: state.rate_bps / 1e6 for link, state in states.items()} == {
        link: pytest.approx(rate) for link, (_, rate) in links.items()
    }
    assert list(found.notes) == notes
    assert [line[2:] for line in target.read_text().splitlines() if line.startswith("# ")][1:] == notes


def test_names_and_positions_are_kept_for_maps(tmp_path: Path) -> None:
    sites = import_graph(SAMPLES / "zoo.gml", tmp_path / "net.yaml", Defaults(1e8)).topology.sites
    assert (sites["cork"].label, sites["cork"].position) == ("Cork", (51.89797, -8.49583))
    assert (sites["none"].label, sites["none"].position) == ("None", None), "what is estimated is no position"
    sites = import_graph(SAMPLES / "latin1.gml", tmp_path / "net.yaml", Defaults(1e8)).topology.sites
    assert [site.label for site in sites.values()] == ["München", 'Köln "Messe"']


def test_a_node_without_a_label_is_called_by_its_id_in_one_line(tmp_path: Path) -> None:
    nodes = "".join(f'<node id="{name}"/>' for name in ("a&#10;b", "a&#10;c, d", "a&#10;c"))
    edges = "".join(f'<edge source="a&#10;b" target="{name}"/>' for name in ("a&#10;c, d", "a&#10;c"))
    (tmp_path / "a.graphml").write_text(
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">{nodes}{edges}'
        "</graph></graphml>"
    )
    made = import_graph(tmp_path / "a.graphml", tmp_path / "007.yaml", Defaults(1e8, 1e-3))
    assert list(made.topology.sites) == ["ab", "ac", "ac-2"]
    assert "'ac, d' is ac, 'ac' is ac-2" in made.notes[0]


#: An edge of a GML graph between Paris and Tokyo, and what is wrong in it.
@pytest.mark.parametrize(
    ("edge", "said"),
    [
        ('latency "fast"', "latency 'fast'"),
        ('latency "110 furlongs"', "'furlongs'"),
        ("latency 0.11", "9712 km"),
        ("distance 9711000.0", "distance is 9.711e+06"),
        ("capacity 10", "capacity is 10"),
        ("bandwidth 100", "bandwidth is 100"),
        ('capacity "10 Gbananas"', "'Gbananas'"),
        ("capacity 1.0e300", "capacity is 1e+300"),
        ("packet_loss 1.5", "packet_loss is 1.5"),
        ("packet_loss 1.0", "packet_loss is 1"),
        ('loss "100%"', "loss is 1"),
        ('jitter "2 x"', "'x'"),
    ],
)
def test_a_value_that_is_not_understood_is_refused_at_its_line(edge: str, said: str, tmp_path: Path) -> None:
    nodes = 'node [ id 0 label "Paris" lat 48.8566 lon 2.3522 ]\nnode [ id 1 label "Tokyo" lat 35.6764 lon 139.65 ]'
    (tmp_path / "a.gml").write_text(f"# edge [ none ]\ngraph [\n{nodes}\nedge [ source 0 target 1 {edge} ]\n]\n")
    (fault,) = refused(tmp_path / "a.gml", tmp_path / "net.yaml").faults
    assert fault.field == "line 5, edge 0 to 1"
    assert said in fault.problem
    made = nx.Graph()
    made.add_node("0", **PARIS)
    made.add_node("1", **TOKYO)
    name, _, value = edge.partition(" ")
    made.add_edge("0", "1", **{name: value.strip('"')})
    file = written(made, tmp_path, ".graphml")
    line = next(n for n, each in enumerate(file.read_text().splitlines(), 1) if "<edge" in each)
    (fault,) = refused(file, tmp_path / "net.yaml").faults
    assert fault.field == f"line {line}, edge 0 to 1"
    assert said in fault.problem


def test_delays_without_positions_or_units_that_cannot_be_in_ms_are_refused(tmp_path: Path) -> None:
    edge = "line 1, edge 0 to 1"
    for delay, field, said in (
        ("0.11", "edges", "seconds"),
        ("110000.0", edge, "110000 ms"),
        ("5000.0", "edges", "micro"),
    ):
        (tmp_path / "a.gml").write_text(
            f"graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 delay {delay} ] ]"
        )
        (fault,) = refused(tmp_path / "a.gml", tmp_path / "net.yaml").faults
        assert fault.field == field
        assert said in fault.problem


def test_a_graphml_value_that_is_not_of_its_key_s_type_is_named_with_its_line(tmp_path: Path) -> None:
    made = nx.Graph()
    made.add_edge("0", "1", latency=110.0)
    file = written(made, tmp_path, ".graphml")
    file.write_text(file.read_text().replace("110.0", "110 ms"))
    line = next(n for n, each in enumerate(file.read_text().splitlines(), 1) if "110 ms" in each)
    (fault,) = refused(file, tmp_path / "net.yaml").faults
    assert fault.field == f"line {line}"
    assert "'110 ms'" in fault.problem


def test_positions_have_directions(tmp_path: Path) -> None:
    def position(lat: str, lon: str) -> str:
        node = f'node [ id 0 Latitude "{lat}" Longitude "{lon}" ]'
        (tmp_path / "a.gml").write_text(f"graph [\n{node}\nnode [ id 1 ] edge [ source 0 target 1 ] ]")
        return str(read_graph(tmp_path / "a.gml").nodes["0"].position)

    assert position("12.0 S", "77°2'W") == str((-12.0, -(77 + 2 / 60)))
    assert position("n/a", "unknown") == "None"
    for lat, lon, said in (("12.0 E", "77 W", "Latitude '12.0 E'"), ("12 S", "west", "Longitude 'west'")):
        with pytest.raises(SpecError, match="line 2, node 0: its ") as caught:
            position(lat, lon)
        assert said in str(caught.value)


def test_what_an_edge_says_of_loss_and_jitter_is_kept_and_the_rest_noted(tmp_path: Path) -> None:
    edge = 'latency "110 ms" jitter "2 ms" packet_loss 0.001 bw 10'
    more = "edge [ source 1 target 2 latency 5 loss 3 jitter 2 ]"
    node = 'node [ id 0 host_bandwidth_up "5 Mbit" ] node [ id 1 ] node [ id 2 ]'
    (tmp_path / "a.gml").write_text(f"graph [ {node} edge [ source 0 target 1 {edge} ] {more} ]")
    made = import_graph(tmp_path / "a.gml", tmp_path / "net.yaml", Defaults(1e8))
    state = made.topology.links["site-0->site-1"].state
    assert (state.delay_s, state.jitter_s, state.loss, state.rate_bps) == (0.11, 0.002, 0.001, 10e6)
    assert made.notes[:4] == (
        "Not taken over, since the workers of all sites have one `lan`: `host_bandwidth_up` of 1 nodes.",
        "Read as Mbit/s, as Mininet has it: `bw` of 1 edges.",
        "Not taken over, since it has no unit: `jitter` of 1 edges.",
        "Not taken over, since it has no unit: `loss` of 1 edges.",
    )


def test_a_share_that_may_be_a_percentage_is_noted(tmp_path: Path) -> None:
    def notes(loss: str) -> tuple[str, ...]:
        edge = f"edge [ source 0 target 1 latency 5 capacity 100000000 {loss} ]"
        (tmp_path / "a.gml").write_text(f"graph [ node [ id 0 ] node [ id 1 ] {edge} ]")
        return import_graph(tmp_path / "a.gml", tmp_path / "net.yaml", Defaults(1e8)).notes

    assert [note for note in notes("packet_loss 0.5") if "`packet_loss` of 1 edges" in note]
    assert notes("packet_loss 0.05") == notes('packet_loss "50%"') == ()


#: Attributes of an edge, and its delay in ms and rate in Mbit/s.
@pytest.mark.parametrize(
    ("edge", "delay_ms", "rate_mbit"),
    [
        ('Delay 110 Bandwidth "20 Mbit/s"', 110, 20),
        ('latencyMs 110 bandwidthMbps "20"', 110, 20),
        ("LATENCY_US 110000 BW 20", 110, 20),
        ("rtt 220 bw 20", 110, 20),
        ('RTT "0.22 s" Capacity "20 Mbit"', 110, 20),
        ("rtt_us 220000 delays 5 bw 20", 110, 20),
    ],
)
def test_an_attribute_is_known_by_its_name_in_any_capitals(
    edge: str, delay_ms: float, rate_mbit: float, tmp_path: Path
) -> None:
    nodes = 'node [ id 0 lat 48.8566 lon 2.3522 ] node [ id 1 lat "35.6764 N" lon 139.65 ]'
    (tmp_path / "a.gml").write_text(f"graph [ {nodes} edge [ source 0 target 1 {edge} ] ]")
    made = import_graph(tmp_path / "a.gml", tmp_path / "net.yaml", Defaults(1e8))
    state = made.topology.links["site-0->site-1"].state
    assert (state.delay_s * 1e3, state.rate_bps / 1e6) == pytest.approx((delay_ms, rate_mbit))


def test_a_round_trip_faster_than_light_is_refused(tmp_path: Path) -> None:
    nodes = "node [ id 0 lat 48.8566 lon 2.3522 ] node [ id 1 lat 35.6764 lon 139.65 ]"
    (tmp_path / "a.gml").write_text(f"graph [ {nodes} edge [ source 0 target 1 rtt 40 ] ]")
    (fault,) = refused(tmp_path / "a.gml", tmp_path / "net.yaml").faults
    assert "rtt is 40" in fault.problem
    assert "9712 km" in fault.problem


def test_quantities_that_no_reader_knows_are_noted(tmp_path: Path) -> None:
    edge = 'propagation_delay "50 ms" maxbps "10G" weight 3 plr "2%" id 7 type "fibre" latency 5 LinkSpeed "50"'
    edge += ' LinkLabel "10 Gbps"'
    zoo = 'edge [ source 1 target 2 latency 5 LinkSpeedRaw 1000000000.0 LinkSpeed "1" LinkLabel "1" ]'
    nodes = "node [ id 0 ] node [ id 1 ] node [ id 2 ]"
    (tmp_path / "a.gml").write_text(f"graph [ {nodes} edge [ source 0 target 1 {edge} ] {zoo} ]")
    made = import_graph(tmp_path / "a.gml", tmp_path / "net.yaml", Defaults(1e8))
    unread = ("propagation_delay", "maxbps", "weight", "plr", "LinkSpeed", "LinkLabel")
    assert made.notes == (
        *(f"Not read: `{name}` of 1 edges." for name in unread),
        "Without a rate, and with 100 Mbit/s: 1 of 2 links.",
    )


def test_a_graphml_default_holds_where_an_edge_or_node_has_no_value_of_its_own(tmp_path: Path) -> None:
    keys = "".join(
        f'<key id="{name}" for="{kind}" attr.name="{name}" attr.type="string"><default>{value}</default></key>'
        for name, kind, value in (("latency", "edge", "110 ms"), ("capacity", "all", "20 Mbit"), ("lat", "node", "12"))
    )
    edges = '<edge source="a" target="b"/><edge source="b" target="c"><data key="latency">5 ms</data></edge>'
    nodes = "".join(f'<node id="{name}"/>' for name in "abc")
    (tmp_path / "a.graphml").write_text(
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}<graph edgedefault="undirected">{nodes}{edges}'
        "</graph></graphml>"
    )
    links = import_graph(tmp_path / "a.graphml", tmp_path / "net.yaml", Defaults(1e8)).topology.links
    found = {name: (link.state.delay_s, link.state.rate_bps) for name, link in links.items()}
    assert found["a->b"] == (0.11, 20e6)
    assert found["b->c"] == (0.005, 20e6)


@pytest.mark.parametrize(
    ("default", "own"),
    [
        (("latency", "110 ms"), {"latencyMs": "5"}),
        (("delay", "110 ms"), {"Latency": "5 ms"}),
        (("latency", "110 ms"), {"rtt": "10 ms"}),
        (("length", "9000 km"), {"distance_m": "100000"}),
        (("capacity", "20 Mbit"), {"bandwidthMbps": "50"}),
        (("capacity", "20 Mbit"), {"LinkSpeed": "50", "LinkSpeedUnits": "M"}),
        (("packet_loss", "0.01"), {"loss": "2%"}),
        (("jitter", "9 ms"), {"jitter_us": "1000"}),
    ],
)
def test_a_value_of_an_edge_wins_over_a_graphml_default_under_another_name(
    default: tuple[str, str], own: dict[str, str], tmp_path: Path
) -> None:
    def link(default_: bool) -> object:
        names = dict([default]) if default_ else {}
        keys = "".join(
            f'<key id="{name}" for="edge" attr.name="{name}" attr.type="string"><default>{names[name]}</default></key>'
            if name in names
            else f'<key id="{name}" for="edge" attr.name="{name}" attr.type="string"/>'
            for name in (*names, *own)
        )
        data = "".join(f'<data key="{name}">{value}</data>' for name, value in own.items())
        (tmp_path / "a.graphml").write_text(
            f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}<graph edgedefault="undirected">'
            f'<node id="a"/><node id="b"/><edge source="a" target="b">{data}</edge></graph></graphml>'
        )
        (edge,) = read_graph(tmp_path / "a.graphml").edges
        return edge

    assert link(default_=True) == link(default_=False)


@pytest.mark.parametrize("name", ["label", "name", "Label", "Name"])
def test_a_node_s_name_is_found_where_other_programs_keep_it(name: str, tmp_path: Path) -> None:
    made = nx.Graph()
    for number, town in enumerate(("Gdansk", "Warsaw")):
        made.add_node(f"n{number}", **{name: town}, lat=50.0 + number, lon=20.0)
    made.add_edge("n0", "n1")
    found = import_graph(written(made, tmp_path, ".graphml"), tmp_path / "net.yaml", Defaults(1e8)).topology
    assert [(name, site.label) for name, site in found.sites.items()] == [("gdansk", "Gdansk"), ("warsaw", "Warsaw")]


def test_under_strict_a_graph_in_parts_is_refused(tmp_path: Path) -> None:
    for name in ("components.gml", "components.csv"):
        with pytest.raises(SpecError) as caught:
            import_graph(SAMPLES / name, tmp_path / "net.yaml", Defaults(1e8), strict=True)
        assert caught.value.fields == ("edges",)
    import_graph(SAMPLES / "zoo.gml", tmp_path / "net.yaml", Defaults(1e8), strict=True)


def test_a_thousand_sites_import_and_one_more_does_not(tmp_path: Path) -> None:
    def ring(count: int) -> Path:
        text = [f'node [ id {i} label "Town {i % 300}" lat {i % 80} lon {i % 170} ]' for i in range(count)]
        text += [f"edge [ source {i} target {(i + 1) % count} ]" for i in range(count)]
        (tmp_path / "ring.gml").write_text("graph [\n" + "\n".join(text) + "\n]")
        return tmp_path / "ring.gml"

    made = import_graph(ring(MAX_SITES), tmp_path / "net.yaml", Defaults(1e8)).topology
    assert (len(made.sites), len(made.links)) == (1000, 2000)
    (fault,) = refused(ring(1001), tmp_path / "no.yaml").faults
    assert fault.field == "nodes"
    assert "1001" in fault.problem and "1000" in fault.remedy


def test_more_links_than_a_file_may_have_are_refused(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(260)]
    rows = [f"{name}," + ",".join("10" for _ in names) for name in names]
    (tmp_path / "full.csv").write_text("\n".join([",".join(["", *names]), *rows]))
    (fault,) = refused(tmp_path / "full.csv", tmp_path / "net.yaml").faults
    assert fault.field == "edges"
    assert "1 MiB" in fault.problem


def with_edge(**attributes: float) -> nx.Graph:
    made = graph()
    made.add_edge("Tokyo", "Saint-Louis, Missouri", **attributes)
    return made


def refused(file: Path, target: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        import_graph(file, target, Defaults(50e6))
    assert not target.exists()
    return caught.value


def test_what_makes_no_topology_is_refused_and_not_written(tmp_path: Path) -> None:
    target = tmp_path / "net.yaml"

    def of(made: nx.Graph, field: str, problem: str, remedy: str = "", suffix: str = ".gml") -> None:
        is_refused(written(made, tmp_path, suffix), field, problem, remedy)

    def is_refused(file: Path, field: str, problem: str, remedy: str = "") -> None:
        (fault,) = refused(file, target).faults
        assert field in fault.field
        assert problem in fault.problem
        assert remedy in fault.remedy

    of(nx.Graph([("Oslo", "Rome")]), "edge 0 to 1", "(Oslo to Rome)", "`Latitude`")
    of(nx.Graph([(0, 0)]), "edges", "")
    of(with_edge(distance=1.0, capacity=0.0), "edge 1 to 2", "capacity is 0", "more than 0 bit/s")
    of(with_edge(distance=-3.0), "edge 1 to 2", "distance is -3")
    of(with_edge(latency=-1.0), "edge 1 to 2", "latency is -1")
    of(with_edge(delay=60_001.0), "edge 1 to 2", "60001 ms")
    of(with_edge(latency=1.0, jitter="61 s"), "edge 1 to 2", "jitter is 61000 ms", "60 s")
    of(with_edge(latency=1.0, packet_loss=0.9999999), "edge 1 to 2", "packet_loss is 1", "below 1")
    frame = "<graphml><graph>\n{}\n</graph></graphml>"
    (tmp_path / "end.graphml").write_text(
        frame.format('<node id="Oslo"/><node id="Rome"/>\n<edge source="Oslo" target="Rom"/>')
    )
    is_refused(tmp_path / "end.graphml", "line 3", "'Rom'", "id of a node")
    far = graph()
    far.add_node("Nowhere", lat=91.0, lon=5.0)
    of(far, "node", "lat is 91", "-90 to 90")
    far.add_node("Nowhere", lat=9.0, lon=-181.0)
    of(far, "node Nowhere", "lon is -181", suffix=".graphml")
    is_refused(tmp_path / "graph.txt", "file", ".graphml")
    is_refused(tmp_path / "none.gml", "file", "none.gml")
    (tmp_path / "long.graphml").write_bytes(b" " * (16 * 2**20 + 1))
    is_refused(tmp_path / "long.graphml", "file", "16 MiB")
    (tmp_path / "text.gml").write_text("no graph")
    is_refused(tmp_path / "text.gml", "file", "", "GML")


@given(st.text(st.characters() | st.sampled_from('[]<>/"= \nedgnoligraph0123'), max_size=80), st.booleans())
@settings(max_examples=100)
def test_any_text_is_a_graph_or_refused(text: str, framed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for suffix, frame in ((".gml", "graph [\n{}\n]"), (".graphml", "<graphml><graph>{}</graph></graphml>")):
            file = Path(folder) / f"graph{suffix}"
            file.write_bytes((frame.format(text) if framed else text).encode("utf-8", "surrogatepass"))
            with pytest.raises(SpecError):
                read_graph(file)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("Poland", "poland"), ("my_net", "my-net"), ("a: [b", "a-b"), ("Zürich", "zurich"), ("ß", "network")],
)
def test_a_network_is_named_like_its_file(stem: str, name: str, tmp_path: Path) -> None:
    target = tmp_path / f"{stem}.yaml"
    assert import_graph(written(graph(), tmp_path, ".gml"), target, Defaults(50e6)).topology.name == name
    assert Topology.load(target).name == name


def test_the_verb_writes_the_file_or_says_why_not(tmp_path: Path) -> None:
    file = written(graph(), tmp_path, ".gml")
    done = CliRunner().invoke(app, ["topology", "import", str(file), "--out", str(tmp_path / "net.yaml")])
    assert done.exit_code == 0, done.output
    assert "3 sites, 4 directed links" in done.stdout
    assert "Without a rate, and with 100 Mbit/s: 1 of 2 links." in done.stdout
    parts = ["topology", "import", str(SAMPLES / "components.gml"), "--out", str(tmp_path / "parts.yaml")]
    assert "The graph has 3 components" in CliRunner().invoke(app, parts).stdout
    assert CliRunner().invoke(app, [*parts, "--strict"]).exit_code == BAD_INPUT
    unsaid = ["topology", "import", str(SAMPLES / "yed.graphml"), "--out", str(tmp_path / "yed.yaml")]
    assert "--delay 10ms for all such" in CliRunner().invoke(app, unsaid).stderr
    assert CliRunner().invoke(app, [*unsaid, "--delay", "12ms", "--rate", "1gbit"]).exit_code == 0
    link = Topology.load(tmp_path / "yed.yaml").links["helsinki->arhus"].state
    assert (link.delay_s, link.rate_bps) == (0.012, 1e9)
    wrong = CliRunner().invoke(app, ["topology", "import", str(tmp_path / "a.txt"), "--out", str(tmp_path / "b.yaml")])
    assert wrong.exit_code == BAD_INPUT
    assert "write instead: " in wrong.stderr


#: Preset → (sites, pairs, a link, its one-way delay in ms by its source).
PRESETS = {
    "netstorm9": (9, 13, "dc6->dc9", 0.0),
    "netstorm9-rtt": (9, 13, "dc6->dc9", 37),
    "netstorm9-static": (9, 13, "dc6->dc9", 0.0),
    "ibm-cloud-10": (10, 45, "osaka->toronto", (168 + 169) / 4),
    "gaia-11": (11, 55, "virginia->california", 0.0085 * 3560.86 + 4),
    "aws-na-22": (22, 231, "ashburn->atlanta", 0.0085 * 853.092 + 4),
    "geant-40": (40, 61, "nl->be", 0.0085 * 179.326 + 4),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_its_source_says(name: str) -> None:
    sites, pairs, link, delay = PRESETS[name]
    topology = Topology.load(TOPOLOGIES / f"{name}.yaml")
    assert topology.name == name
    assert (len(topology.sites), len(topology.links)) == (sites, 2 * pairs)
    assert topology.links[link].state.delay_s * 1e3 == pytest.approx(delay, abs=1e-3)
    assert (TOPOLOGIES / f"{name}.yaml").read_text().startswith("# ")


def test_netstorm_s_links_draw_their_rates_again_every_three_minutes() -> None:
    links = Topology.load(TOPOLOGIES / "netstorm9.yaml").links.values()
    assert len({link.trace for link in links}) == len(links)
    for link in links:
        assert link.trace is not None
        assert [row.time_s for row in link.trace.rows] == [180 * i for i in range(10)]
        assert all(row.rate_bps is not None and 20e6 <= row.rate_bps <= 155e6 for row in link.trace.rows)
        assert (link.state.delay_s, link.state.jitter_s, link.state.loss) == (0, 0, 0)


def test_netstorm_is_what_its_maker_makes(tmp_path: Path) -> None:
    make = runpy.run_path(str(TOPOLOGIES / "make_presets.py"))
    (tmp_path / "topologies").mkdir()
    make["make_netstorm"](tmp_path / "topologies", tmp_path / "traces/netstorm9")
    kept = sorted(file.name for file in (TOPOLOGIES.parent / "traces/netstorm9").iterdir())
    made = tmp_path / "traces/netstorm9"
    assert sorted(file.name for file in made.iterdir()) == kept
    assert filecmp.cmpfiles(made, TOPOLOGIES.parent / "traces/netstorm9", kept, shallow=False)[0] == kept
    presets = [name for name in PRESETS if name.startswith("netstorm9")]
    for name in presets:
        assert filecmp.cmp(tmp_path / f"topologies/{name}.yaml", TOPOLOGIES / f"{name}.yaml", shallow=False)


@needs_recorded
def test_the_others_are_what_their_maker_makes_of_the_sources(tmp_path: Path) -> None:
    make = runpy.run_path(str(TOPOLOGIES / "make_presets.py"))
    make["make_graphs"](RECORDED, tmp_path)
    make["make_ibm_cloud"](RECORDED, tmp_path)
    names = sorted(file.name for file in tmp_path.iterdir())
    sourced = sorted(name for name in PRESETS if not name.startswith("netstorm9"))
    assert [name.removesuffix(".yaml") for name in names] == sourced
    assert filecmp.cmpfiles(tmp_path, TOPOLOGIES, names, shallow=False)[0] == names
