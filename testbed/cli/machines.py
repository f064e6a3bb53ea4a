"""The commands for several machines: `cluster` and `certificates`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from testbed.cli.console import CANNOT, Json, err, fail, out
from testbed.cli.experiment import interruptible_run

if TYPE_CHECKING:
    from testbed.scaleout.cluster import HostFacts, PairFacts

cluster_app = typer.Typer(
    no_args_is_help=True, help="Start, inspect and stop a cluster of machines, for sweeps and split networks."
)


@cluster_app.command()
def up(
    file: Annotated[
        Path, typer.Argument(metavar="HOSTS", help="the hosts file, which names each machine and its address")
    ],
) -> None:
    """Prepare the hosts of a file over SSH with setup.sh, and start Ray on them, with this machine as the head."""
    from testbed.scaleout.cluster import up as start
    from testbed.spec.hosts import Hosts

    with interruptible_run():
        start(Hosts.load(file), lambda line: out.print(line, markup=False))


@cluster_app.command()
def doctor(json_: Json = False) -> None:
    """Show what each host of the cluster can do, and the round trip and capacity between each two hosts."""
    from testbed.scaleout.cluster import examine

    with interruptible_run():
        facts, pairs = examine()
    if json_:
        print(json.dumps({"hosts": [asdict(each) for each in facts], "pairs": [asdict(each) for each in pairs]}))
        return
    _show(facts, pairs)


@cluster_app.command()
def down() -> None:
    """Stop the cluster on all hosts and on this machine."""
    from testbed.scaleout.cluster import down as stop

    with interruptible_run():
        lost = stop(lambda line: out.print(line, markup=False))
    if lost:
        for each in lost:
            err.print(each, markup=False)
        raise fail(
            CANNOT,
            "the cluster still runs on the hosts that were not reached\n"
            "    run there: .venv/bin/python -m testbed.scaleout.node stop",
        )


def certificates(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="where to keep them; an authority that is there is used again")
    ],
    members: Annotated[list[str], typer.Argument(metavar="MEMBER…", help="the names of the members")],
) -> None:
    """Make TLS certificates for the controller and each member, for runs with --tls (docs/machines.md)."""
    from testbed.certificates import AUTHORITY_KEY, make_certificates

    for made in make_certificates(folder, members):
        typer.echo(made)
    typer.echo(f"Copy each folder to its own machine. Keep {folder / AUTHORITY_KEY} here: it signs new certificates.")


def _show(facts: list[HostFacts], pairs: list[PairFacts]) -> None:
    hosts = _table("host", "address", "cores", "shaping budget", "kernel", "backend", "clock offset")
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
