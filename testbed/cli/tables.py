"""Prints networks, runs, plans and comparisons as tables in a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from testbed.cli.console import plain_table
from testbed.plan import Plan, depth
from testbed.report import text
from testbed.spec.units import count
from testbed.telemetry.round_span import MEANING

if TYPE_CHECKING:
    from testbed.run.directory import PastRun
    from testbed.run.sweep.comparison import Comparison

#: In a file or a pipe no line is cut off: a line may have any length up to WIDEST, which no table reaches.
PIPE_WIDTH, WIDEST = 160, 100_000

#: The columns that hold words and are aligned to the left.
LEFT = ("run", "verdict", "host", "link", "address", "root", "group")

#: A smaller gap of the bound is the solver's tolerance, and is not shown.
SHOWN_GAP = 1e-3

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_status(networks: Iterable[Mapping[str, Any]], others: Mapping[str, int | None]) -> None:
    """Print the status of each network that is up, and the `others`: name → pid of networks of running experiments.

    A network without a pid was left by a crash.
    """
    networks = list(networks)
    for network in networks:
        replay = network["replay"]
        late = f", p99 {replay['late_ms_p99']:.1f} ms late" if replay["late_ms_p99"] is not None else ""
        console.print(
            f"[bold]{network['name']}[/]  {escape(network['file'])}  "
            f"{network['backend']} shaping, process {network['pid']}\n"
            f"up for {_span(replay['elapsed_s'])}; {count(replay['links'], 'replayed trace')}{late}"
        )
        if network["failure"]:
            console.print(f"[red]{escape(network['failure'])}[/]")
        _print_table(_hosts(network["hosts"]))
        _print_table(_links(network["links"]))
    for name, pid in others.items():
        crashed = "left by a crash; `testbed network clean` removes it, and nothing that is running"
        said = f"a running experiment (process {pid})" if pid else crashed
        console.print(f"[bold]{name}[/]  {said}")
    if not networks and not others:
        console.print("no network is up")


def print_runs(runs: Sequence[PastRun]) -> None:
    """Print a row for each run."""
    if not runs:
        console.print("there is no run in runs/")
        return
    table = _table("run", "began", "verdict", "size")
    for run in runs:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began_s))
        table.add_row(Text(run.path.name), began, Text(run.state), text.size(run.bytes))
    console.print(table)
    console.print(
        f"{count(len(runs), 'run')}, {text.size(sum(run.bytes for run in runs))}; `testbed runs rm RUN` removes a run"
    )


def print_link(name: str, state: Mapping[str, Any]) -> None:
    """Print the current state of a link."""
    delay = f"{state['delay_s'] * 1e3:.2f} ms ±{state['jitter_s'] * 1e3:.2f} ms"
    up = "up" if state["up"] else "down"
    console.print(f"{name}  {state['rate_bps'] / 1e6:.3f} Mbit/s  {delay}  loss {state['loss']:.3%}  {up}")


def print_swap(name: str, done: Mapping[str, Any]) -> None:
    """Print what a swap changed. The swap of a run reports links alone, since its sites and workers stay."""
    told = {kind: done[kind] for kind in ("sites", "workers", "links") if kind in done} or {"links": done}
    for kind, changed in told.items():
        for change in ("added", "removed", "changed"):
            if names := changed[change]:
                console.print(f"  {kind} {change}: {', '.join(names)}", markup=False)
    if "seconds" not in done:
        console.print(f"{name} in force after {done['active_s'] - done['requested_s']:.2f} s")
        return
    if done["lan"]:
        console.print("  LAN changed")
    console.print(
        f"{name} in force after {done['seconds']:.2f} s; packets lost during the swap on the {done['unchanged_links']} "
        f"unchanged links: {done['lost_packets']}; dropped for lack of a route: {done['unroutable_packets']}"
    )


def print_comparison(compared: Comparison) -> None:
    """Print a row for each point: medians over its runs, with the least and the most where they differ."""
    from testbed.run.sweep.comparison import TO_LOSS

    points = compared.points
    loss = "the loss" if compared.loss is None else f"loss {compared.loss:.3g}"
    columns: Mapping[str, tuple[str, Callable[[float], str]]] = {
        "round, s": ("seconds_per_round_p50", text.number),
        "training, s": ("wall_seconds", text.number),
        f"to {loss}, s": (TO_LOSS, text.number),
        "test accuracy, %": ("final_accuracy", lambda share: f"{100 * share:.1f}"),
        "over the lower bound, ×": ("ratio_to_lower_bound", text.number),
        "over the bound, ×": ("ratio_to_bound", text.number),
        "over the WAN, MB": ("wan_bytes", lambda count: text.number(count / 1e6, 4)),
    }
    table = plain_table(*points[0].labels, numbers=columns, then=["verdicts"])
    for point in points:
        own = compared.outcome(point)
        cells = (text.spread(own["spread"][name], words) for name, words in columns.values())
        verdicts = Counter(own["verdicts"])
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        table.add_row(*(Text(label) for label in point.labels.values()), *cells, told)
    _print_table(table)
    console.print(f"a round counts {MEANING}, in the median; with several runs, medians (least to most)")


def _print_table(table: Table, markup: bool = True) -> None:
    """Print a table. In a file or a pipe no line is folded, however long it is."""
    if console.is_terminal:
        console.print(table, markup=markup)
        return
    for column in table.columns:
        column.no_wrap = True
    before, widest = console.width, console.options.update(width=WIDEST, markup=markup)
    console.width = max(before, Measurement.get(console, widest, table).maximum)
    console.print(table, markup=markup)
    console.width = before


def print_plan(plan: Plan, figures: Mapping[str, Any], own: bool) -> None:
    """Print a row for each tree of a plan, then the predicted seconds of a round, and the policy's reasons.

    The reasons of a policy that is not the project's `own` are printed as JSON.
    """
    table = _table("root", "share", "hops up", "hops down", "keys")
    for tree in plan.trees:
        ways = (max((depth(name, way) for name in way), default=0) for way in (tree.reduce, tree.broadcast))
        table.add_row(tree.root, f"{tree.share:.1%}", *map(str, ways), str(len(tree.keys)) if tree.keys else "")
    _print_table(table)
    seconds, ratio = figures["predicted_seconds"], ""
    if figures["bound_seconds"]:
        ratio = (
            f", {figures['ratio_to_lower_bound']:.2f} times the lower bound of {figures['lower_bound_seconds']:.3f} s, "
            f"{figures['ratio_to_bound']:.2f} times the bound without delays, {figures['bound_seconds']:.3f} s"
        )
    gap = f" (a bound known to within {figures['bound_gap']:.1%})" if figures["bound_gap"] > SHOWN_GAP else ""
    console.print(
        f"{plan.policy}: {count(len(plan.members), 'member')}, chunks of {text.size(plan.chunk_bytes)}, "
        f"{count(len(plan.auxiliary), 'auxiliary route')}\n"
        f"predicted {seconds:.3f} s a round{ratio}{gap}: {figures['drain_seconds']:.3f} s to drain "
        f"{figures['bottleneck'] or 'nothing'}, {figures['fill_seconds']:.3f} s to fill the trees",
        markup=False,
    )
    if figures["simulated_seconds"] is not None:
        console.print(f"simulated chunk by chunk: {figures['simulated_seconds']:.3f} s")
    if figures["why"] and own:
        _print_reasons(figures["why"])
    elif figures["why"]:
        console.print(json.dumps(figures["why"], indent=2, ensure_ascii=False), markup=False)


def _print_reasons(why: Mapping[str, Any]) -> None:
    """Print the predicted round of each policy, or the groups that a grouping policy chose.

    Groups come with their cost by term, in milliseconds of a round or an exchange.
    """
    if "round_s" in why:
        rounds = _table("policy", "seconds a round")
        for name, seconds in why["round_s"].items():
            rounds.add_row(Text(name), f"{seconds:.3f}")
        _print_table(rounds)
        return
    titles = (
        *("steps", "period", "phase", "compute, ms", "ring, ms", "round trip, ms", "transfer, ms", "step, ms"),
        *("skew, bits", "stale, rounds"),
    )
    table = _table("group", *titles)
    for group in why["groups"]:
        steps = sorted(set(group["steps"].values()))
        table.add_row(
            ", ".join(f"[{name}]" if name in group["leaders"] else name for name in group["members"]),
            f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0]),
            *(str(group[name]) for name in ("period", "phase")),
            *(f"{1e3 * group[name]:.0f}" for name in ("compute_s", "ring_s", "rtt_s", "transfer_s", "s_per_step")),
            *(f"{group[name]:.2f}" for name in ("skew_bits", "stale_rounds")),
        )
    _print_table(table, markup=False)
    terms = " + ".join(f"{value:.3f} {name}" for name, value in why["factor"].items())
    console.print(
        f"cost {1e3 * why['cost_s_per_step']:.1f} ms a step = {1e3 * why['slowest_s_per_step']:.1f} ms at the slowest "
        f"group · (1 + {terms}); [name] is the member that exchanges for its group",
        markup=False,
    )


def _hosts(hosts: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("host", "address", "pid")
    for name, host in hosts.items():
        table.add_row(name, host["address"], str(host["pid"]) if host["running"] else "[red]ended[/]")
    return table


def _links(links: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("link", "rate, Mbit/s", "delay, ms", "loss", "queue", "carried", "dropped, pkts", "lost, pkts")
    for name, link in links.items():
        mark = "≈" if link.get("declared_traffic") else "~" if link["replayed"] else " "
        jitter = f"±{link['jitter_s'] * 1e3:.2f}" if link["jitter_s"] else ""
        table.add_row(
            name,
            f"{link['rate_bps'] / 1e6:.2f}{mark}" if link["up"] else "[red]down[/] ",
            f"{link['delay_s'] * 1e3:.2f}{jitter}",
            f"{link['loss']:.3%}" if link["loss"] else "",
            text.size(link["queue_bytes"]) + _discipline(link),
            text.size(link["bytes"]),
            str(link["dropped_queue"]),
            str(link["dropped_loss"]),
        )
    notes = ["~ replayed from its trace"] if any(link["replayed"] for link in links.values()) else []
    if any(link.get("declared_traffic") for link in links.values()):
        notes.append("≈ what background traffic leaves")
    if notes:
        table.caption, table.caption_justify = "; ".join(notes), "left"
    return table


def _discipline(link: Mapping[str, Any]) -> str:
    """Return the name of what drops packets of a link's queue before it is full; empty for a tail-drop queue."""
    name = link.get("discipline", {}).get("name", "droptail")
    return "" if name == "droptail" else f" {name}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for title in titles:
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=True)
    return table


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
