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
from testbed.spec.graph import delay_ms, great_circle_km, import_graph, read_graph, site_name
from testbed.spec.topology import RESERVED, SITE_NAME, Topology
from tests.recorded import RECORDED, needs_recorded

pytestmark = pytest.mark.unit

TOPOLOGIES = Path(__file__).parents[2] / "topologies"

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


@pytest.mark.parametrize("suffix", [".gml", ".graphml"])
def test_a_graph_becomes_a_topology(suffix: str, tmp_path: Path) -> None:
    import_graph(written(graph(), tmp_path, suffix), tmp_path / "net.yaml", 50e6, 2)
    topology = Topology.load(tmp_path / "net.yaml")
    assert topology.name == "net"
    assert list(topology.sites) == ["paris", "tokyo", "saint-louis"]
    assert {site.workers for site in topology.sites.values()} == {2}
    measured, given_ = topology.links["paris->tokyo"].state, topology.links["saint-louis->paris"].state
    assert measured.delay_s == pytest.approx((0.0085 * 9712 + 4) / 1e3, rel=0.002)  # 9,712 km by any atlas
    assert measured.rate_bps == 50e6
    assert (given_.delay_s, given_.rate_bps) == (0.0125, 300e6)


def test_the_shorter_of_parallel_edges_counts_and_loops_do_not(tmp_path: Path) -> None:
    made = nx.MultiDiGraph([(0, 1, {"distance": 900}), (1, 0, {"distance": 100}), (0, 0, {"distance": 5})])
    links = read_graph(written(made, tmp_path, ".graphml"), 1e6)
    assert [(link.a, link.b, link.delay_ms) for link in links] == [("site-1", "site-0", delay_ms(100))]


def test_great_circles() -> None:
    assert great_circle_km((0, 0), (0, 180)) == pytest.approx(20_015, rel=1e-3)
    assert great_circle_km((90, 0), (0, 77)) == pytest.approx(10_007.5, rel=1e-3)
    assert great_circle_km((48, 2), (48, 2)) == 0


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Sao Paulo", "sao-paulo"),
        ("San José", "san-jose"),
        ("Miami, Florida", "miami"),
        ("1", "site-1"),
        ("lo", "site-lo"),
        ("", "site"),
        ("W0", "sitew0"),
        ("Paris W12", "parisw12"),
        ("a-very-long-w12345", "a-very-longw12"),
        ("London Docklands", "london-dockland"),
        ("Frankfurt-Main A-West", "frankfurt-main"),
    ],
)
def test_a_label_becomes_a_site_s_name(label: str, name: str) -> None:
    assert site_name(label) == name


@given(st.text(max_size=30) | st.text("aw01-", max_size=20))
def test_any_label_becomes_a_valid_name(label: str) -> None:
    name = site_name(label)
    assert SITE_NAME.fullmatch(name)
    assert len(name) <= 15
    assert not RESERVED.fullmatch(name)


def with_edge(**attributes: float) -> nx.Graph:
    made = graph()
    made.add_edge("Tokyo", "Saint-Louis, Missouri", **attributes)
    return made


def refused(file: Path, target: Path) -> str:
    with pytest.raises(SpecError) as caught:
        import_graph(file, target, 50e6, 1)
    assert not target.exists()
    return str(caught.value)


def test_what_makes_no_topology_is_refused_and_not_written(tmp_path: Path) -> None:
    target = tmp_path / "net.yaml"
    assert "edge 1 to 2: has no length and no coordinates" in refused(written(with_edge(), tmp_path, ".gml"), target)
    alone = graph()
    alone.add_edge("Oslo", "Rome", distance=1)
    assert "not connected" in refused(written(alone, tmp_path, ".gml"), target)
    twins = nx.Graph([("Rome, Italy", "Rome, Georgia")])
    assert "'Rome, Georgia' becomes the site 'rome', as 'Rome, Italy'" in refused(
        written(twins, tmp_path, ".graphml"), target
    )
    assert "edges: there is none" in refused(written(nx.Graph([(0, 0)]), tmp_path, ".gml"), target)
    assert "rate: '0mbit' is out of range" in refused(
        written(with_edge(distance=1.0, capacity=0.0), tmp_path, ".gml"), target
    )
    assert "neither .gml nor .graphml" in refused(tmp_path / "graph.txt", target)
    assert "cannot be read" in refused(tmp_path / "none.gml", target)
    assert "name" in refused(written(graph(), tmp_path, ".gml"), tmp_path / "Big Net.yaml")


@given(st.text(st.characters() | st.sampled_from('[]<>/"= \nedgnoligraph0123'), max_size=80), st.booleans())
@settings(max_examples=100)
def test_any_text_is_a_graph_or_refused(text: str, framed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for suffix, frame in ((".gml", "graph [\n{}\n]"), (".graphml", "<graphml><graph>{}</graph></graphml>")):
            file = Path(folder) / f"graph{suffix}"
            file.write_bytes((frame.format(text) if framed else text).encode("utf-8", "surrogatepass"))
            with pytest.raises(SpecError):
                read_graph(file, 1e6)


def test_the_verb_writes_the_file_or_says_why_not(tmp_path: Path) -> None:
    file = written(graph(), tmp_path, ".gml")
    done = CliRunner().invoke(app, ["topology", "import", str(file), "--out", str(tmp_path / "net.yaml")])
    assert done.exit_code == 0, done.output
    assert "3 sites, 4 directed links" in done.stdout
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
