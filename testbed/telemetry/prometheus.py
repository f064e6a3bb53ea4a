"""The state of a run and of its network as Prometheus metrics, in its text format.

Names and units follow Prometheus's conventions: the base unit (seconds, bytes, ratios from 0 to 1) ends the name, and
`_total` ends a counter's. A link has the labels `link` (`paris->tokyo`), `source` and `target`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from testbed.link import link_ends
from testbed.telemetry.round_span import MEANING

STATES = ("waiting", "running", "done", "failed")
LINK = ("link", "source", "target")

Status = Mapping[str, Any]


def metrics(run: Status | None = None, network: Status | None = None) -> bytes:
    """Return the metrics of a run, by its controller's status, and of a network, by `testbed network list --json`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_State(run, network))
    return generate_latest(registry)


class _State(Collector):
    def __init__(self, run: Status | None, network: Status | None) -> None:
        self._run = run
        self._network = network

    def collect(self) -> Iterable[Metric]:
        if self._run is not None:
            yield from _of_run(self._run)
        if self._network is not None:
            yield from _of_network(self._network)


def _of_run(run: Status) -> Iterator[Metric]:
    states = {(state,): state == run["state"] for state in STATES}
    yield _gauge("run_state", "Whether the run is in this state.", states, "state")
    yield _gauge("run_rounds", "Rounds that the run is to complete.", run["rounds"])
    yield _counter("rounds", "Rounds that all members completed.", run["round"] or 0)
    yield _gauge("round_duration_seconds", f"The duration of the newest round, {MEANING}.", run["round_seconds"])
    yield _gauge("plan_epoch", "The epoch of the plan in force.", run["epoch"])
    policies = {(policy,): 1 for policy in (run["policy"],) if policy is not None}
    yield _gauge("plan_info", "The policy by which the plan in force was made.", policies, "policy")
    active = [swap for swap in run["swaps"] if swap["active_s"] is not None]
    yield _counter("plan_swaps", "Plans that replaced another plan.", len(active))
    lost, doubled = (sum(swap[f"{what}_updates"] for swap in active) for what in ("lost", "duplicated"))
    yield _counter("lost_updates", "Updates that plan swaps lost.", lost)
    yield _counter("duplicated_updates", "Updates that plan swaps counted twice.", doubled)
    joined = {(member,): member in run["joined"] for member in run["members"]}
    yield _gauge("member_joined", "Whether a member has joined.", joined, "member")
    kinds = [event["kind"] for event in run["membership_events"]]
    events = {(kind,): kinds.count(kind) for kind in ("left", "came")}
    yield _counter("membership_events", "Members that left or joined while the run was on.", events, "kind")
    newest = {(name,): value for name, value in run["metrics"].items()}
    yield _gauge("training_metric", "The newest mean over members of a training metric.", newest, "metric")
    yield from _of_estimates(run["estimates"])


def _of_estimates(estimates: Mapping[str, Status]) -> Iterator[Metric]:
    for name, what, figure, unit in (
        ("link_estimated_rate_bytes_per_second", "The rate that the controller estimates.", "rate_bps", 1 / 8),
        ("link_estimated_rate_low_bytes_per_second", "The lower end of the estimate's interval.", "low_bps", 1 / 8),
        ("link_estimated_rate_high_bytes_per_second", "The upper end of the estimate's interval.", "high_bps", 1 / 8),
        ("link_estimate_age_seconds", "Seconds since the link was last measured.", "age_s", 1),
    ):
        yield _gauge(name, what, {_ends(link): each[figure] * unit for link, each in estimates.items()}, *LINK)


def _of_network(network: Status) -> Iterator[Metric]:
    links: Mapping[str, Status] = network["links"]
    for name, what, figure, unit in (
        ("link_rate_bytes_per_second", "The rate of the link now.", "rate_bps", 1 / 8),
        ("link_delay_seconds", "The one-way delay of the link now.", "delay_s", 1),
        ("link_jitter_seconds", "The jitter of the link now.", "jitter_s", 1),
        ("link_loss_ratio", "The share of packets that the link loses at random.", "loss", 1),
        ("link_up", "Whether packets can pass.", "up", 1),
        ("link_backlog_bytes", "Bytes in the link's queue.", "backlog_bytes", 1),
    ):
        yield _gauge(name, what, {_ends(link): each[figure] * unit for link, each in links.items()}, *LINK)
    for figure, what in (("bytes", "Frame bytes that a link carried."), ("packets", "Packets that a link carried.")):
        yield _counter(
            f"link_carried_{figure}", what, {_ends(link): each[figure] for link, each in links.items()}, *LINK
        )
    reasons = ("queue", "loss")
    dropped = {(*_ends(link), why): each[f"dropped_{why}"] for link, each in links.items() for why in reasons}
    yield _counter("link_dropped_packets", "Packets that the link dropped, by reason.", dropped, *LINK, "reason")
    late_ms = network["replay"]["late_ms_p99"]
    late_s = None if late_ms is None else late_ms / 1e3
    yield _gauge("replay_lateness_seconds", "The delay with which trace rows are applied, 99th percentile.", late_s)
    yield _gauge("network_failed", "Whether links are dead or the replay has stopped.", network["failure"] is not None)
    running = {(name, host["site"], host["kind"]): host["running"] for name, host in network["hosts"].items()}
    yield _gauge("host_running", "Whether the host's network namespace is there.", running, "host", "site", "kind")


def _ends(link: str) -> tuple[str, str, str]:
    """Return a link's labels; an edge without a known route is a capacity of its own, `u=>v`."""
    return (link, *link_ends(link.replace("=>", "->")))


#: The values of a metric by its labels' values (a tuple); or the single value of a metric without labels. None makes no
#: sample.
Values = Mapping[Any, float | None] | float | None


def _gauge(name: str, what: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"testbed_{name}", what, labels=labels), values)


def _counter(name: str, what: str, values: Values, *labels: str) -> Metric:
    """Return a counter; the library appends `_total` to its name."""
    return _filled(CounterMetricFamily(f"testbed_{name}", what, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values.items() if isinstance(values, Mapping) else (((), values),):
        if value is not None:
            family.add_metric(labels, float(value))
    return family
