from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.link import MTU_FRAME_BYTES, CoDel, GilbertElliott, LinkState, Opportunities, Queue, Red
from testbed.spec.errors import SpecError
from testbed.spec.topology import MAX_WORKERS, Topology
from testbed.trace.trace import Row
from tests.spec.files import TOPOLOGY, spoilt

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]


def load(value: Any, folder: Path = Path()) -> Topology:
    return Topology.from_value(value, folder / "topology.yaml")


def refused(value: Any, folder: Path = Path()) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load(value, folder)
    return caught.value


@pytest.mark.parametrize("file", sorted((ROOT / "topologies").glob("*.yaml")), ids=lambda file: file.name)
def test_a_topology_of_the_project_loads(file: Path) -> None:
    assert Topology.load(file).workers


def test_an_entry_is_two_directed_links() -> None:
    topology = load(TOPOLOGY)
    assert list(topology.links) == ["paris->tokyo", "tokyo->paris", "paris->dallas", "dallas->paris"]
    assert topology.links["tokyo->paris"].state == LinkState(rate_bps=50e6, delay_s=0.110)
    assert topology.links["paris->dallas"].state.delay_s == 0.055  # half of the rtt


def test_workers_are_named_after_their_site_in_the_order_of_the_file() -> None:
    assert [worker.name for worker in load(TOPOLOGY).workers] == ["paris-w0", "paris-w1", "tokyo-w0", "dallas-w0"]


def test_one_worker_more_is_the_next_of_its_site_and_all_else_stays() -> None:
    before = load(spoilt(TOPOLOGY, "sites", "tokyo", to={"workers": 1, "speed": 0.5, "cpus": 2}))
    after = before.with_worker("tokyo")
    assert set(after.workers) - set(before.workers) == {after.last_worker("tokyo")}
    assert after.last_worker("tokyo") == replace(before.last_worker("tokyo"), name="tokyo-w1")
    assert (after.links, after.lan, after.name) == (before.links, before.lan, before.name)
    assert load(TOPOLOGY).with_worker("paris").with_worker("paris").last_worker("paris").name == "paris-w3"


def test_a_site_has_no_more_workers_than_its_lan_has_addresses() -> None:
    full = load(spoilt(TOPOLOGY, "sites", "paris", "workers", to=MAX_WORKERS))
    with pytest.raises(ValueError):
        full.with_worker("paris")
    with pytest.raises(KeyError, match="rome"):
        full.with_worker("rome")


def test_a_direction_says_itself_what_differs() -> None:
    entry = {
        "between": ["paris", "tokyo"],
        "rate": "50mbit",
        "rtt": "100ms",
        "forward": {"rate": "80mbit", "delay": "55ms", "jitter": "2ms", "loss": "0.01%", "queue": "2bdp"},
        "backward": {"rtt": "90ms"},
    }
    topology = load(spoilt(TOPOLOGY, "links", 0, to=entry))
    assert topology.links["paris->tokyo"].state == LinkState(80e6, 0.055, 0.002, 0.0001, Queue(2))
    assert topology.links["tokyo->paris"].state == LinkState(50e6, 0.045)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text("time_s,rate_mbps,loss_pct\n0,40,\n1,20,1\n3,10,\n")
    return tmp_path


def with_trace(**reference: Any) -> dict[str, Any]:
    entry = {"between": ["paris", "tokyo"], "rate": "50mbit", "delay": "10ms", "forward": {"trace": reference}}
    return spoilt(TOPOLOGY, "links", 0, to=entry)


def test_a_trace_lies_relative_to_the_topology_and_moves_one_direction(traced: Path) -> None:
    topology = load(with_trace(file="trace.csv", scale=0.5), traced)
    link = topology.links["paris->tokyo"]
    assert link.trace is not None
    assert link.at(0) == LinkState(20e6, 0.010)
    assert link.at(1.5) == LinkState(10e6, 0.010, loss=0.01)
    assert link.at(5.5) == link.at(0.5)  # 5 s long, then again
    assert topology.links["tokyo->paris"].trace is None


def test_a_trace_that_both_directions_replace_is_not_read(traced: Path) -> None:
    own = {"trace": {"file": "trace.csv"}}
    entry = {"between": ["paris", "tokyo"], "rate": "50mbit", "delay": "10ms", "trace": {"file": "none.csv"}}
    topology = load(spoilt(TOPOLOGY, "links", 0, to={**entry, "forward": own, "backward": own}), traced)
    assert topology.trace_files == (traced / "trace.csv",)


def test_a_trace_that_does_not_loop_holds_its_last_row(traced: Path) -> None:
    link = load(with_trace(file="trace.csv", loop=False), traced).links["paris->tokyo"]
    assert link.at(1e6) == LinkState(10e6, 0.010)


@pytest.mark.parametrize(
    ("ending", "end"),
    [
        ({}, "loop"),
        ({"loop": True}, "loop"),
        ({"loop": False}, "hold"),
        ({"end": "hold"}, "hold"),
        ({"end": "stop"}, "stop"),
    ],
)
def test_how_a_trace_ends(ending: dict[str, Any], end: str, traced: Path) -> None:
    link = load(with_trace(file="trace.csv", **ending), traced).links["paris->tokyo"]
    assert link.trace is not None
    assert link.trace.end == end
    assert link.at(1e6).up == (end != "stop")


def test_a_trace_begins_at_its_offset(traced: Path) -> None:
    link = load(with_trace(file="trace.csv", offset="6.5s"), traced).links["paris->tokyo"]
    assert link.at(0) == LinkState(20e6, 0.010, loss=0.01)  # 1.5 s into the second lap
    assert link.at(1.5) == LinkState(10e6, 0.010)


def test_a_packet_delivery_file_is_resampled_at_the_step(tmp_path: Path) -> None:
    (tmp_path / "lte.down").write_text("".join(f"{ms}\n" for ms in range(0, 2001, 2)))
    topology = load(with_trace(file="lte.down", step="500ms"), tmp_path)
    trace = topology.links["paris->tokyo"].trace
    assert trace is not None
    assert [row.time_s for row in trace.rows] == [0, 0.5, 1, 1.5]


def test_a_packet_delivery_file_also_comes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lte.down").write_text("".join(f"{ms}\n" for ms in range(0, 2001, 2)))
    trace = (
        load(with_trace(file="lte.down", offset="1.5s", scale=0.5, end="hold"), tmp_path).links["paris->tokyo"].trace
    )
    assert trace is not None
    delivery = trace.delivery(100.0)
    assert delivery is not None
    assert (delivery.began_s, delivery.end) == (98.5, "hold")
    assert delivery.opportunities == Opportunities(tuple(range(0, 2001, 2)), MTU_FRAME_BYTES / 2)


def test_loss_in_bursts_and_reordering_are_a_direction_s_own() -> None:
    entry = {
        "between": ["paris", "tokyo"],
        "rate": "50mbit",
        "delay": "10ms",
        "loss": "1%",
        "forward": {"loss": {"p": "1%", "r": "24%"}, "jitter": "1ms", "reorder": True},
    }
    topology = load(spoilt(TOPOLOGY, "links", 0, to=entry))
    assert topology.links["paris->tokyo"].state == LinkState(
        50e6, 0.01, 0.001, 0.04, bursts=GilbertElliott(0.01, 0.24), reorder=True
    )
    assert topology.links["tokyo->paris"].state == LinkState(50e6, 0.01, loss=0.01)


@pytest.mark.parametrize(
    ("written", "queue"),
    [
        ("200packets", Queue(200, "packets")),
        ("2000000B", Queue(2e6, "bytes")),
        ("4GB", Queue(4e9, "bytes")),
        ({"limit": "256KB"}, Queue(256e3, "bytes")),
        ({"limit": "2bdp", "discipline": "droptail"}, Queue(2)),
        ({"discipline": "codel"}, Queue(discipline=CoDel(0.005, 0.1))),
        ({"discipline": "codel", "target": "10ms", "interval": "0.2s"}, Queue(discipline=CoDel(0.01, 0.2))),
        ({"discipline": "red"}, Queue(discipline=Red(0.1, 0.3, 0.02))),
        (
            {"limit": "1MB", "discipline": "red", "min": "5%", "max": "50%", "probability": "10%"},
            Queue(1e6, "bytes", Red(0.05, 0.5, 0.1)),
        ),
    ],
)
def test_a_queue_has_a_length_and_a_discipline(written: Any, queue: Queue) -> None:
    topology = load(spoilt(TOPOLOGY, "links", 0, "queue", to=written))
    assert topology.links["paris->tokyo"].state.queue == queue


@pytest.mark.parametrize(
    ("written", "problem", "remedy"),
    [
        ({"discipline": "fq"}, "'fq'", "droptail, codel, red"),
        ({"discipline": ["red"]}, "red", "droptail, codel, red"),
        ({"discipline": "red", "target": "5ms"}, "'target'", "probability"),
        ({"target": "5ms"}, "droptail", "limit, discipline"),
        ({"limit": "5ms", "discipline": "codel"}, "unit", "1bdp"),
        ("5GB", "out of range", "at most 4GB"),
        ("2000000packets", "out of range", "at most 1000000packets"),
        ("0bdp", "out of range", "above 0"),
        ({"discipline": "codel", "target": 5}, "no unit", "5ms"),
        ({"limit": None}, "limit is not", "1bdp"),
        ({"discipline": "codel", "interval": None}, "interval is not", "5ms"),
        ({"discipline": "red", "min": None}, "min is not", "0.1%"),
        ({"discipline": "codel", "interval": "5ms"}, "not below", "10 %"),
        ({"discipline": "red", "min": "30%"}, "below max", "max: 30%"),
        ({"discipline": "red", "probability": "0%"}, "above 0%", "2%"),
        ({"discipline": "red", "max": "0.5"}, "percentage", "0.1%"),
    ],
)
def test_a_queue_that_breaks_a_rule_is_told(written: Any, problem: str, remedy: str) -> None:
    (fault,) = refused(spoilt(TOPOLOGY, "links", 0, "queue", to=written)).faults
    assert fault.field == "links.0.queue"
    assert problem in fault.problem
    assert remedy in fault.remedy


def test_loss_in_bursts_that_breaks_a_rule_is_told_with_its_field() -> None:
    entry = {"between": ["paris", "tokyo"], "rate": "50mbit", "delay": "10ms", "loss": {"p": "1%"}}
    (fault,) = refused(spoilt(TOPOLOGY, "links", 0, to=entry)).faults
    assert fault.field == "links.0.loss"
    assert "{p: 1%, r: 30%, bad: 100%, good: 0%}" in fault.remedy


@pytest.mark.parametrize(
    ("reference", "field", "remedy"),
    [
        ({"loop": True, "end": "loop"}, "trace", "`end: stop`"),
        ({"end": "never"}, "trace.end", "'loop', 'hold' or 'stop'"),
        ({"offset": 3}, "trace.offset", "30s"),
        ({"step": "0ms"}, "trace.step", "100ms"),
    ],
)
def test_a_trace_s_field_that_breaks_a_rule(reference: dict[str, Any], field: str, remedy: str, traced: Path) -> None:
    (fault,) = refused(with_trace(file="trace.csv", **reference), traced).faults
    assert fault.field == f"links.0.forward.{field}"
    assert remedy in fault.remedy


@pytest.mark.parametrize("reference", [{"step": "100ms"}, {"end": "stop", "offset": "5s"}])
def test_a_trace_that_cannot_be_replayed_as_asked(reference: dict[str, Any], traced: Path) -> None:
    error = refused(with_trace(file="trace.csv", **reference), traced)
    assert error.fields == ("links.0.forward.trace",)
    assert "trace.csv: " in str(error)


def test_a_trace_gives_the_rate_where_the_link_has_none(traced: Path) -> None:
    value = spoilt(with_trace(file="trace.csv"), "links", 0, "rate", to=...)
    value = spoilt(value, "links", 0, "backward", to={"rate": "5mbit"})
    assert load(value, traced).links["paris->tokyo"].state.rate_bps == 40e6


def test_a_trace_without_a_rate_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,delay_ms\n0,40\n")
    value = spoilt(with_trace(file="trace.csv"), "links", 0, "rate", to=...)
    error = refused(spoilt(value, "links", 0, "backward", to={"rate": "5mbit"}), tmp_path)
    assert error.fields == ("links.0.forward.trace",)
    assert "paris->tokyo" in str(error)


def test_scaling_touches_wan_rates_alone(traced: Path) -> None:
    topology = load(with_trace(file="trace.csv"), traced)
    half = topology.scaled(0.5)
    link = half.links["paris->tokyo"]
    assert link.trace is not None
    assert link.trace.rows[1] == Row(1.0, 10e6, loss=0.01)
    assert half.links["tokyo->paris"].state == LinkState(25e6, 0.010)
    assert half.lan == topology.lan


@pytest.mark.parametrize(
    ("value", "field", "remedy"),
    [
        (spoilt(TOPOLOGY, "colour", to="red"), "colour", "name"),
        (spoilt(TOPOLOGY, "sites", "paris", "worker", to=1), "sites.paris.worker", "`workers`"),
        (spoilt(TOPOLOGY, "links", 0, "rate", to="-5mbit"), "links.0.rate", "50mbit"),
        (spoilt(TOPOLOGY, "links", 0, "rate", to="1e999mbit"), "links.0.rate", "50mbit"),
        (spoilt(TOPOLOGY, "links", 0, "rate", to=50), "links.0.rate", "mbit"),
        (spoilt(TOPOLOGY, "links", 0, "rate", to=...), "links.0", "rate: 50mbit"),
        (spoilt(TOPOLOGY, "links", 0, "delay", to=...), "links.0", "delay: 20ms"),
        (spoilt(TOPOLOGY, "links", 0, "rtt", to="1ms"), "links.0", ""),
        (spoilt(TOPOLOGY, "links", 0, "between", to=["paris", "rome"]), "links.0.between", "paris"),
        (spoilt(TOPOLOGY, "links", 0, "between", to=["paris", "paris"]), "links.0", ""),
        (spoilt(TOPOLOGY, "links", 0, "between", to=["paris"]), "links.0.between.1", ""),
        (spoilt(TOPOLOGY, "links", 0, "between", to="paris"), "links.0.between", "[paris, tokyo]"),
        (spoilt(TOPOLOGY, "links", 0, "between", to="paris-rome-x"), "links.0.between", "[a, b]"),
        (spoilt(TOPOLOGY, "links", 0, "between", to="paris->rome"), "links.0.between", "paris"),
        (
            spoilt(TOPOLOGY, "links", 1, "between", to=["tokyo", "paris"]),
            "links.1.between",
            "",
        ),
        (spoilt(TOPOLOGY, "links", 1, to=...), "links", ""),
        (spoilt(TOPOLOGY, "sites", to={"paris": {"workers": 0}}) | {"links": []}, "sites", "workers: 1"),
        (spoilt(TOPOLOGY, "sites", to={}) | {"links": []}, "sites", "1 to"),
        (spoilt(TOPOLOGY, "sites", "paris", "workers", to=254), "sites.paris.workers", "253"),
        (spoilt(TOPOLOGY, "sites", "paris", "workers", to=1.5), "sites.paris.workers", "whole"),
        (spoilt(TOPOLOGY, "sites", "paris", "speed", to=float("nan")), "sites.paris.speed", "finite"),
        (spoilt(TOPOLOGY, "sites", "paris", "speed", to=float("inf")), "sites.paris.speed", "finite"),
        (spoilt(TOPOLOGY, "sites", "paris", "memory", to="1MB"), "sites.paris.memory", "6.29146e+06"),
        (spoilt(TOPOLOGY, "sites", "paris", to=None), "sites.paris", "workers"),
        (spoilt(TOPOLOGY, "sites", "paris", "label", to="p" * 101), "sites.paris.label", "at most"),
        (spoilt(TOPOLOGY, "sites", to=[1]), "sites", "mapping"),
        (spoilt(TOPOLOGY, "name", to=...), "name", ""),
        (spoilt(TOPOLOGY, "name", to="Big"), "name", "match"),
        (spoilt(TOPOLOGY, "routing", to="rip"), "routing", "'delay', 'hops' or 'inverse-rate'"),
        (spoilt(TOPOLOGY, "lan", to={"rate": "100gbit"}), "lan.rate", "1gbit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_a_rule_is_named(value: Any, field: str, remedy: str) -> None:
    error = refused(value)
    assert (error.file.name, error.faults[0].field) == ("topology.yaml", field)
    assert remedy in error.faults[0].remedy


@pytest.mark.parametrize("written", ["paris->tokyo", "paris-tokyo", "[paris, tokyo]", " paris -> tokyo "])
def test_a_link_s_sites_may_be_written_as_its_name(written: str) -> None:
    assert load(spoilt(TOPOLOGY, "links", 0, "between", to=written)).links == load(TOPOLOGY).links


def test_a_pair_of_sites_with_dashes_is_found_among_the_sites() -> None:
    sites = {name: {"workers": 1} for name in ("new-york", "york-new", "york", "new")}
    links = [{"between": pair, "rate": "9mbit", "delay": "1ms"} for pair in ("new-york-new", "york-new-york")]
    value = {"name": "dashes", "sites": sites, "links": links}
    (fault,) = refused(value).faults
    assert fault.field == "links.0.between"
    assert "new-york->new or new->york-new" in fault.problem
    del sites["york-new"]
    assert [*load(value).links][::2] == ["new-york->new", "york->new-york"]


def test_the_pairs_of_many_sites_with_dashes_are_found_at_once() -> None:
    names = [f"site-{number}" for number in range(1000)]
    links = [{"between": f"{a}-{b}", "rate": "9mbit", "delay": "1ms"} for a, b in pairwise(names)]
    value = {"name": "row", "sites": {name: {"workers": 1} for name in names}, "links": links}
    assert len(load(value).links) == 2 * 999


@pytest.mark.parametrize(
    "name",
    ["Paris", "pa_ris", "", "-paris", "1paris", "paris tokyo", "a" * 16, "lan", "lo", "w0", "all", "default", "b-w3"],
)
def test_a_site_s_name_becomes_interfaces_and_hosts(name: str) -> None:
    (fault,) = refused(spoilt(TOPOLOGY, "sites", name, to={"workers": 1})).faults
    assert repr(name) in fault.problem
    assert fault.remedy


def test_a_site_may_carry_no_worker_between_others_that_do() -> None:
    assert len(load(spoilt(TOPOLOGY, "sites", "paris", "workers", to=0)).workers) == 2


ON_OFF = {"rate": "20%", "busy": "1s", "idle": "2s"}
POISSON = {"rate": "5mbit", "size": "1MB", "every": "1s"}


def with_traffic(*entries: dict[str, Any]) -> dict[str, Any]:
    return {**TOPOLOGY, "traffic": list(entries)}


def test_traffic_without_a_link_is_on_each_and_drawn_for_each() -> None:
    links = load(with_traffic({"on_off": ON_OFF})).links
    assert len({link.trace and link.trace.rows for link in links.values()}) == len(links)
    assert {row.rate_bps for row in links["paris->tokyo"].trace.rows} == {50e6, 40e6}  # type: ignore[union-attr]
    assert {row.rate_bps for row in links["paris->dallas"].trace.rows} == {80e6, 64e6}  # type: ignore[union-attr]
    assert all(link.traffic for link in links.values())
    assert links["paris->tokyo"].state == load(TOPOLOGY).links["paris->tokyo"].state


def test_traffic_on_a_link_leaves_the_others_alone() -> None:
    topology, without = load(with_traffic({"link": "paris-tokyo", "poisson": POISSON})), load(TOPOLOGY)
    assert [name for name, link in topology.links.items() if link.traffic] == ["paris->tokyo"]
    assert {**topology.links, "paris->tokyo": None} == {**without.links, "paris->tokyo": None}


def test_recorded_traffic_is_a_trace_of_its_rates(traced: Path) -> None:
    value = with_traffic({"link": ["tokyo", "paris"], "trace": {"file": "trace.csv", "offset": "1s"}})
    topology = load(value, traced)
    link = topology.links["tokyo->paris"]
    assert [link.at(moment).rate_bps for moment in (0, 2.5, 4.5, 5.5)] == [30e6, 40e6, 10e6, 30e6]
    assert link.at(0).loss == 0  # what the traffic loses is not the link's
    assert topology.trace_files == (traced / "trace.csv",)
    assert topology.scaled(0.5).links["tokyo->paris"].at(0).rate_bps == 15e6


def test_the_seed_draws_the_traffic() -> None:
    value = with_traffic({"on_off": ON_OFF}, {"poisson": POISSON})
    first, again, other = (Topology.from_value(value, Path("topology.yaml"), seed).links for seed in (1, 1, 2))
    assert first == again
    assert all(first[name].trace != other[name].trace for name in first)


@pytest.mark.parametrize(
    ("entry", "field", "remedy"),
    [
        ({}, "traffic.0", "one of on_off, poisson, trace"),
        ({"on_off": ON_OFF, "poisson": POISSON}, "traffic.0", "one of on_off, poisson, trace"),
        ({"link": "paris->rome", "on_off": ON_OFF}, "traffic.0.link", "paris->tokyo"),
        ({"link": "paris", "on_off": ON_OFF}, "traffic.0.link", "paris->tokyo"),
        ({"on_off": {**ON_OFF, "rate": "0%"}}, "traffic.0.on_off.rate", "30%"),
        ({"on_off": {**ON_OFF, "rate": "120%"}}, "traffic.0.on_off.rate", "100%"),
        ({"on_off": {**ON_OFF, "rate": "20"}}, "traffic.0.on_off.rate", "20mbit"),
        ({"on_off": {**ON_OFF, "rate": "1bit"}}, "traffic.0.on_off.rate", "1000"),
        ({"on_off": {**ON_OFF, "busy": "0s"}}, "traffic.0.on_off.busy", "at least 50ms"),
        ({"on_off": {"rate": "20%", "busy": "1s"}}, "traffic.0.on_off.idle", "required"),
        ({"poisson": {**POISSON, "every": "1ms"}}, "traffic.0.poisson.every", "at least 50ms"),
        ({"poisson": {**POISSON, "most": "1ms"}}, "traffic.0.poisson.most", "rate"),
        ({"poisson": {"rate": "1kbit", "size": "1GB", "every": "50ms"}}, "traffic.0.poisson", "10,000"),
        ({"trace": {"file": "missing.csv"}}, "traffic.0.trace", "docs/traces.md"),
    ],
)
def test_traffic_that_breaks_a_rule_is_named(entry: dict[str, Any], field: str, remedy: str) -> None:
    (fault,) = refused(with_traffic(entry)).faults
    assert fault.field == field
    assert remedy in fault.remedy


def test_traffic_of_a_trace_without_rates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,delay_ms\n0,5\n1,6\n")
    assert refused(with_traffic({"trace": {"file": "trace.csv"}}), tmp_path).fields == ("traffic.0.trace",)


def test_traffic_beside_a_trace_with_as_many_rows_as_may_be_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{0.0005 * number + 0.0001 * (number > 0):.4f},{10 + number % 7}\n" for number in range(2001))
    (tmp_path / "trace.csv").write_text(f"time_s,rate_mbps\n{rows}")
    load(with_trace(file="trace.csv", end="stop"), tmp_path)
    traffic = [{"on_off": {**ON_OFF, "busy": "50ms", "idle": "50ms"}}]
    assert refused({**with_trace(file="trace.csv", end="stop"), "traffic": traffic}, tmp_path).fields == ("traffic",)


def test_the_rows_of_all_links_with_traffic_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    value = with_traffic({"on_off": ON_OFF})
    counts = [len(link.trace.rows) for link in load(value).links.values() if link.trace]
    monkeypatch.setattr("testbed.spec.topology.MOST_ROWS", max(counts) + 1)
    load(with_traffic({"link": "paris->tokyo", "on_off": ON_OFF}))
    assert refused(value).fields == ("traffic",)


@pytest.mark.parametrize("name", ["missing.csv", "..", "a\0b", "x" * 5000])
def test_a_trace_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    assert refused(with_trace(file=name), tmp_path).fields == ("links.0.forward.trace",)


def test_a_fault_of_both_directions_is_said_once() -> None:
    assert refused(spoilt(TOPOLOGY, "links", 0, "trace", to={"file": "missing.csv"})).fields == ("links.0.trace",)
