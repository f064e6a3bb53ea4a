"""`testbed cluster`: several machines as one, for sweeps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from testbed.cli.console import CANNOT, err, fail, out
from testbed.cli.experiment import interruptible_run

if TYPE_CHECKING:
    from testbed.scaleout.doctor import HostFacts, PairFacts

app = typer.Typer(no_args_is_help=True, help="Machines as a cluster: start one over SSH, ask it, take it away.")


@app.command()
def up(file: Annotated[Path, typer.Argument(metavar="HOSTS", help="the hosts file")]) -> None:
    """Make the hosts of a file ready by setup.sh, and start Ray on them; this machine is the head."""
    from testbed.scaleout.cluster import up as start
    from testbed.spec.hosts import Hosts

    with interruptible_run():
        start(Hosts.load(file), lambda line: out.print(line, markup=False))


@app.command()
def doctor(json_: Annotated[bool, typer.Option("--json", help="for programs")] = False) -> None:
    """Say what each host can do, and what lies between each two."""
    from testbed.scaleout.doctor import examine

    with interruptible_run():
        facts, pairs = examine()
    if json_:
        print(json.dumps({"hosts": [asdict(each) for each in facts], "pairs": [asdict(each) for each in pairs]}))
        return
    _show(facts, pairs)


@app.command()
def down() -> None:
    """Take the cluster away from all hosts, and from here."""
    from testbed.scaleout.cluster import down as stop

    with interruptible_run():
        lost = stop(lambda line: out.print(line, markup=False))
    if lost:
        for each in lost:
            err.print(each, markup=False)
        raise fail(
            CANNOT, "where a host was not reached, `.venv/bin/python -m testbed.scaleout.node stop` does it there"
        )


def _show(facts: list[HostFacts], pairs: list[PairFacts]) -> None:
    hosts = _table("host", "address", "cores", "budget", "kernel", "backend", "clock ahead by")
    for each in facts:
        budget = f"{each.budget_bps / 1e6:.0f} Mbit/s" if each.budget_bps else "not measured"
        clock = f"{each.clock_offset_s * 1e3:.2f} ± {each.clock_bound_s * 1e3:.2f} ms"
        backend = each.backend or "none works"
        hosts.add_row(each.host, each.address, str(each.cores), budget, each.kernel, backend, clock)
    out.print(hosts)
    if not pairs:
        return
    between = _table("between", "round trip", "jitter", "capacity", "MTU")
    for pair in pairs:
        between.add_row(
            " and ".join(pair.hosts), _ms(pair.round_trip_s), _ms(pair.jitter_s),
            f"{pair.capacity_bps / 1e6:.0f} Mbit/s" if pair.capacity_bps else "–", str(pair.mtu or "–"),
        )  # fmt: skip
    out.print(between)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f} ms"
