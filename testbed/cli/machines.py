"""The commands that prepare machines: `doctor` and `setup` for this one, `cluster` and `certificates` for several."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from testbed.cli.console import CANNOT, FAILED, Json, bad_input, err, fail, interruptible_verb, out, plain_table
from testbed.resources import BUILD, IS_CHECKOUT, SHARE
from testbed.run.terminal.wrap import wrapped

if TYPE_CHECKING:
    from testbed.emulation.host.doctor import Finding
    from testbed.scaleout.cluster import HostFacts, PairFacts

#: The experiment that `make emulate` runs in a checkout.
QUICKSTART = SHARE / "experiments" / "quickstart.yaml"


#: The text that `testbed setup` prints before it installs anything.
STEPS = """\
This installs what the emulation needs, with {script}:
  - missing packages, by apt-get: Mininet, iproute2, iptables, iperf3, a C compiler, mmdebstrap, Open vSwitch, and
    Docker if there is no engine; about 200 MB
  - the shaping core and the planner, compiled in {build}
  - a Docker engine, started if none answers
  - the worker image: Debian with Python and PyTorch, built here without a registry; about 1 GB of disk,
    or several GB where pip's index has PyTorch with CUDA"""


def setup(yes: Annotated[bool, typer.Option("--yes", "-y", help="install without asking")] = False) -> None:
    """Install what the emulation needs: packages, a Docker engine and the worker image; lists them and asks first."""
    script = SHARE / "setup.sh"
    if os.geteuid() != 0:
        raise fail(CANNOT, "setup: installing packages needs root; run it with sudo")
    out.print(STEPS.format(script=script, build=BUILD), markup=False)
    if not yes and not sys.stdin.isatty():
        raise bad_input("setup asks before installing, but has no terminal", "testbed setup --yes")
    if not yes and not typer.confirm("Go on?", default=True):
        raise typer.Exit(FAILED)
    arguments = [] if IS_CHECKOUT else ["installed"]
    environment = {} if IS_CHECKOUT else {"TESTBED_PYTHON": sys.executable, "TESTBED_BUILD": str(BUILD)}
    raise typer.Exit(subprocess.run(["bash", str(script), *arguments], env=os.environ | environment).returncode)


def doctor(
    fix: Annotated[
        bool,
        typer.Option("--fix", help="fix what can be fixed: install, load modules, start the engine, measure, clean up"),
    ] = False,
    json_: Json = False,
) -> None:
    """Show what this machine can do, which shaping backend it gets, and what to install for more."""
    from testbed.emulation.host.doctor import examine, fix_all

    with interruptible_verb("; what was fixed until then stays fixed"):
        findings = fix_all() if fix else examine()
    if json_:
        typer.echo(json.dumps([asdict(finding) | {"ok": finding.ok} for finding in findings], indent=1))
    else:
        show(findings)
    if any(finding.blocks for finding in findings):
        raise typer.Exit(CANNOT)


def show(findings: Sequence[Finding]) -> None:
    """Print whether the quickstart runs here, and each finding with its remedy."""
    out.print(wrapped(Text(_quickstart(findings), style="bold"), out))
    out.print(f"{platform.release()} {platform.machine()}, {os.cpu_count()} cores", markup=False)
    margin = max(len(finding.name) for finding in findings) + 4
    for finding in findings:
        head, *below = _lines(finding, margin)
        out.print(wrapped(head, out, hanging=margin))
        for line in below:
            out.print(wrapped(line, out, hanging=0))
    if any(finding.fixable and not finding.fix for finding in findings):
        out.print("`testbed doctor --fix` tries to fix these.")


def _quickstart(findings: Sequence[Finding]) -> str:
    if lacking := [finding.name for finding in findings if finding.blocks]:
        return f"This machine cannot run the quickstart yet: see {', '.join(lacking)}."
    if (excess := _excess()) is not None:
        return f"This machine runs the quickstart, but its verdict may be `suspect`: {excess}."
    return f"This machine can run the quickstart: `{'sudo make emulate' if IS_CHECKOUT else 'testbed run quickstart'}`."


def _excess() -> str | None:
    """Return why the quickstart exceeds the measured budget, or None if it fits or no budget was measured."""
    from testbed.emulation.host.budget import host_budget, need
    from testbed.emulation.host.doctor import MODULES
    from testbed.spec.experiment import Experiment

    kept = next((budget for budget in map(host_budget, MODULES) if budget), None)
    if kept is None or not QUICKSTART.exists():
        return None
    experiment = Experiment.load(QUICKSTART, {})
    return need(experiment, kept).excess(kept, experiment.spec.scale)


def _lines(finding: Finding, margin: int) -> Iterator[Text]:
    """Yield the finding, then what `--fix` did and what is left to do, indented by `margin`, the names' column."""
    mark, colour = ("✗", "red") if finding.blocks else ("✓", "green") if finding.ok else ("–", "yellow")
    yield Text.assemble((mark, colour), f" {finding.name:<{margin - 2}}{finding.found}")
    below = " " * margin
    if finding.fix:
        yield Text.assemble(below, ("fixed:" if finding.fixed else "not fixed:", "bold"), f" {finding.fix}")
    if finding.remedy:
        yield Text.assemble(below, (finding.remedy, "italic"))


cluster_app = typer.Typer(
    no_args_is_help=True, help="Start, inspect and stop a cluster of machines, on which sweeps and comparisons run."
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

    with interruptible_verb(": the start of the cluster was undone; what setup.sh installed on hosts stays"):
        hosts = Hosts.load(file)
        if not IS_CHECKOUT:
            raise fail(
                CANNOT,
                "cluster up copies a checkout to the hosts; call it in a checkout in place of an installed wheel",
            )
        if os.geteuid() != 0:
            raise fail(CANNOT, "cluster up: starting Ray and filtering its ports needs root; run it with sudo")
        start(hosts, lambda line: out.print(line, markup=False))


@cluster_app.command("doctor")
def cluster_doctor(json_: Json = False) -> None:
    """Show what each host of the cluster can do, and the round trip and capacity between each two hosts."""
    from testbed.scaleout.cluster import examine

    with interruptible_verb(": the cluster is as it was"):
        facts, pairs = examine()
    if json_:
        typer.echo(json.dumps({"hosts": [asdict(each) for each in facts], "pairs": [asdict(each) for each in pairs]}))
        return
    _show_cluster(facts, pairs)


@cluster_app.command()
def down() -> None:
    """Stop the cluster on all hosts and on this machine."""
    from testbed.scaleout.cluster import down as stop

    with interruptible_verb(": the cluster may still be up on some hosts; call `testbed cluster down` again"):
        lost = stop(lambda line: out.print(line, markup=False))
    if lost:
        for each in lost:
            err.print(each, markup=False)
        raise fail(
            CANNOT,
            "the cluster still runs on the hosts that were not reached; those in another cluster are left alone",
        )


def certificates(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="the folder for the certificates; an authority in it is used again")
    ],
    members: Annotated[list[str], typer.Argument(metavar="MEMBER…", help="the names of the members")],
) -> None:
    """Make TLS certificates for the controller and each member, for runs with --tls (docs/machines.md)."""
    from testbed.certificates import AUTHORITY_KEY, make_certificates

    for made in make_certificates(folder, members):
        typer.echo(made)
    typer.echo(f"Copy each folder to its own machine. Keep {folder / AUTHORITY_KEY} here: it signs new certificates.")


def _show_cluster(facts: list[HostFacts], pairs: list[PairFacts]) -> None:
    hosts = plain_table("host", "address", "cores", "shaping budget", "kernel", "backend", "clock offset")
    for each in facts:
        budget = f"{each.budget_bps / 1e6:.0f} Mbit/s" if each.budget_bps else "not measured"
        clock = f"{each.clock_offset_s * 1e3:.2f} ± {each.clock_bound_s * 1e3:.2f} ms"
        backend = each.backend or "none works"
        hosts.add_row(each.host, each.address, str(each.cores), budget, each.kernel, backend, clock)
    out.print(hosts)
    if not pairs:
        return
    between = plain_table("between", "round trip", "jitter", "capacity", "MTU")
    for pair in pairs:
        between.add_row(
            " and ".join(pair.hosts), _ms(pair.round_trip_s), _ms(pair.jitter_s),
            f"{pair.capacity_bps / 1e6:.0f} Mbit/s" if pair.capacity_bps else "–", str(pair.mtu or "–"),
        )  # fmt: skip
    out.print(between)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f} ms"
