"""What a run and its network are at, as Prometheus reads it: metrics in its text format.

Names and units are by its conventions: base units (seconds, bytes, ratios from 0 to 1) at the end of the name, and
`_total` at the end of what only grows. A link has the labels `link` (`paris->tokyo`), `source` and `target`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from testbed.link import link_ends
from testbed.telemetry.round_span import MEANING

#: Goes with what `metrics` returns, in the header `Content-Type`.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATES = ("waiting", "running", "done", "failed")
LINK = ("link", "source", "target")

Status = Mapping[str, Any]


def metrics(run: Status | None = None, network: Status | None = None) -> bytes:
    """The metrics of a run, by its controller's status, and of a network, by what `testbed status --json` says of one;
    those of either alone where the other is None."""
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
    yield _gauge("run_rounds", "Rounds that the run is to make.", run["rounds"])
    yield _counter("rounds", "Rounds that all members completed.", run["round"] or 0)
    yield _gauge("round_duration_seconds", f"The newest round, {MEANING}.", run["round_seconds"])
    yield _gauge("plan_epoch", "The epoch of the plan in force.", run["epoch"])
    policies = {(policy,): 1 for policy in (run["policy"],) if policy is not None}
    yield _gauge("plan_info", "The policy by which the plan in force was made.", policies, "policy")
    active = [swap for swap in run["swaps"] if swap["active_s"] is not None]
    yield _counter("plan_swaps", "Plans that came into force in place of another.", len(active))
    lost, doubled = (sum(swap[f"{what}_updates"] for swap in active) for what in ("lost", "duplicated"))
    yield _counter("lost_updates", "Updates that swaps of plans lost.", lost)
    yield _counter("duplicated_updates", "Updates that swaps of plans counted twice.", doubled)
    joined = {(member,): member in run["joined"] for member in run["members"]}
    yield _gauge("member_joined", "Whether a member has joined.", joined, "member")
    kinds = [event["kind"] for event in run["passages"]]
    events = {(kind,): kinds.count(kind) for kind in ("left", "came")}
    yield _counter("membership_events", "Members that left, and that came, in the midst of the run.", events, "kind")
    newest = {(name,): value for name, value in run["metrics"].items()}
    yield _gauge("training_metric", "The newest mean over members of what they measured.", newest, "metric")
    yield from _of_estimates(run["estimates"])


def _of_estimates(estimates: Mapping[str, Status]) -> Iterator[Metric]:
    for name, what, figure, unit in (
        ("link_estimated_rate_bytes_per_second", "What the controller holds the link to carry.", "rate_bps", 1 / 8),
        ("link_estimated_rate_low_bytes_per_second", "The estimate's lower end.", "low_bps", 1 / 8),
        ("link_estimated_rate_high_bytes_per_second", "The estimate's upper end.", "high_bps", 1 / 8),
        ("link_estimate_age_seconds", "How long ago the link was measured.", "age_s", 1),
    ):
        yield _gauge(name, what, {_ends(link): each[figure] * unit for link, each in estimates.items()}, *LINK)


def _of_network(network: Status) -> Iterator[Metric]:
    links: Mapping[str, Status] = network["links"]
    for name, what, figure, unit in (
        ("link_rate_bytes_per_second", "The rate in force.", "rate_bps", 1 / 8),
        ("link_delay_seconds", "The delay in force, one way.", "delay_s", 1),
        ("link_jitter_seconds", "The jitter in force.", "jitter_s", 1),
        ("link_loss_ratio", "The share of packets that the link loses at random.", "loss", 1),
        ("link_up", "Whether packets can pass.", "up", 1),
        ("link_backlog_bytes", "What waits in the link's queue.", "backlog_bytes", 1),
    ):
        yield _gauge(name, what, {_ends(link): each[figure] * unit for link, each in links.items()}, *LINK)
    for figure, what in (("bytes", "Bytes of frames that the link let through."), ("packets", "Packets of them.")):
        yield _counter(
            f"link_carried_{figure}", what, {_ends(link): each[figure] for link, each in links.items()}, *LINK
        )
    reasons = ("queue", "loss")
    dropped = {(*_ends(link), why): each[f"dropped_{why}"] for link, each in links.items() for why in reasons}
    yield _counter("link_dropped_packets", "Packets that the link dropped, by why.", dropped, *LINK, "reason")
    late_ms = network["replay"]["late_ms_p99"]
    late_s = None if late_ms is None else late_ms / 1e3
    yield _gauge("replay_lateness_seconds", "How late traces are put in force, 99th percentile.", late_s)
    yield _gauge("network_failed", "Whether links are dead or traces stand still.", network["failure"] is not None)
    running = {(name, host["site"], host["kind"]): host["running"] for name, host in network["hosts"].items()}
    yield _gauge("host_running", "Whether what holds the host's network is there.", running, "host", "site", "kind")


def _ends(link: str) -> tuple[str, str, str]:
    return (link, *link_ends(link))


#: By the values of the labels, a tuple of as many as there are; or the one of a metric that has none. What is not known
#: has no sample.
Values = Mapping[Any, float | None] | float | None


def _gauge(name: str, what: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"testbed_{name}", what, labels=labels), values)


def _counter(name: str, what: str, values: Values, *labels: str) -> Metric:
    """Its samples have `_total` at the end of their name."""
    return _filled(CounterMetricFamily(f"testbed_{name}", what, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values.items() if isinstance(values, Mapping) else (((), values),):
        if value is not None:
            family.add_metric(labels, float(value))
    return family
