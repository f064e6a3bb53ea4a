"""`testbed doctor` and `testbed setup`: what this machine can do, and what installs the rest."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from testbed.cli.console import BAD_INPUT, CANNOT, FAILED, fail, interruptible_verb, out
from testbed.resources import BUILD, IS_CHECKOUT, SHARE
from testbed.run.terminal.phrases import fitted

if TYPE_CHECKING:
    from testbed.emulation.host.doctor import Finding

#: What `make emulate` runs, of a checkout.
QUICKSTART = SHARE / "experiments" / "quickstart.yaml"


#: What `testbed setup` does, said before it does it.
STEPS = """\
This installs what the emulation needs of this machine, with {script}:
  - by apt-get, where they are missing: Mininet, iproute2, iptables, iperf3, a C compiler, mmdebstrap, Open vSwitch, and
    Docker where no engine is there; about 200 MB
  - the shaping core and the planner, compiled into {build}
  - a Docker engine, started if none answers
  - the worker image: Debian with Python and PyTorch, made here without a registry; about 1 GB of disk"""


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(doctor)
    app.command()(setup)


def setup(yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Install what the emulation needs of this machine: packages, an engine, the worker image. Says first what."""
    script = SHARE / "setup.sh"
    if os.geteuid() != 0:
        raise fail(CANNOT, "installing packages needs root; run it with sudo")
    out.print(STEPS.format(script=script, build=BUILD), markup=False)
    if not yes and not sys.stdin.isatty():
        raise fail(BAD_INPUT, "there is no terminal to ask whether to go on\n    write instead: testbed setup --yes")
    if not yes and not typer.confirm("Go on?", default=True):
        raise typer.Exit(FAILED)
    arguments = [] if IS_CHECKOUT else ["installed"]
    environment = {} if IS_CHECKOUT else {"TESTBED_PYTHON": sys.executable, "TESTBED_BUILD": str(BUILD)}
    raise typer.Exit(subprocess.run(["bash", str(script), *arguments], env=os.environ | environment).returncode)


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="mend what can be: install, load, start, measure, clean")] = False,
    json_: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Say what this machine can do, which shaping backend it gets, and what to install for more."""
    from testbed.emulation.host.doctor import examine, fix_all

    with interruptible_verb("; what was mended by then stays so"):
        findings = fix_all() if fix else examine()
    if json_:
        print(json.dumps([asdict(finding) | {"ok": finding.ok} for finding in findings], indent=1))
    else:
        show(findings)
    if any(finding.blocks for finding in findings):
        raise typer.Exit(CANNOT)


def show(findings: Sequence[Finding]) -> None:
    """Print whether the quickstart runs here, and each finding with what to do."""
    out.print(fitted(Text(_quickstart(findings), style="bold"), out))
    out.print(f"{platform.release()} {platform.machine()}, {os.cpu_count()} cores", markup=False)
    margin = max(len(finding.name) for finding in findings) + 4
    for finding in findings:
        head, *below = _lines(finding, margin)
        out.print(fitted(head, out, hanging=margin))
        for line in below:
            out.print(fitted(line, out, hanging=0))
    if any(finding.fixable and not finding.fix for finding in findings):
        out.print("`testbed doctor --fix` tries what it can of this.")


def _quickstart(findings: Sequence[Finding]) -> str:
    """The answer that most people ask for."""
    if lacking := [finding.name for finding in findings if finding.blocks]:
        return f"This machine cannot run the quickstart yet: see {', '.join(lacking)}."
    if (excess := _excess()) is not None:
        return f"This machine runs the quickstart, but its verdict may be `suspect`: {excess}."
    return f"This machine can run the quickstart: `{'sudo make emulate' if IS_CHECKOUT else 'testbed run quickstart'}`."


def _excess() -> str | None:
    """By the budget that was measured, why the quickstart asks for too much; None where it does not, or where that is
    not known."""
    from testbed.emulation.host.budget import host_budget, need
    from testbed.emulation.host.doctor import MODULES
    from testbed.spec.experiment import Experiment

    kept = next((budget for budget in map(host_budget, MODULES) if budget), None)
    if kept is None or not QUICKSTART.exists():
        return None
    experiment = Experiment.load(QUICKSTART, {})
    return need(experiment, kept).excess(kept, experiment.spec.scale)


def _lines(finding: Finding, margin: int) -> Iterator[Text]:
    """What was found, then what was done and what to do, set in by the `margin` in which the names stand."""
    mark, colour = ("✗", "red") if finding.blocks else ("✓", "green") if finding.ok else ("–", "yellow")
    yield Text.assemble((mark, colour), f" {finding.name:<{margin - 2}}{finding.found}")
    below = " " * margin
    if finding.fix:
        yield Text.assemble(below, ("fixed:" if finding.fixed else "not fixed:", "bold"), f" {finding.fix}")
    if finding.remedy:
        yield Text.assemble(below, (finding.remedy, "italic"))
