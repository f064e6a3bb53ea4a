"""The command `launch`: starts a program on all workers of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from testbed.cli.console import (
    BAD_INPUT,
    FAILED,
    TOPOLOGY,
    Open,
    Port,
    Quiet,
    api_port,
    bad_input,
    fail,
    need_root,
    progress_display,
)
from testbed.cli.container_options import ContainerOptions, takes_container_options
from testbed.cli.experiment import Strict, interruptible_run, page, tell, tell_reasons
from testbed.cli.network import Name, chosen_network

if TYPE_CHECKING:
    from testbed.run.execute import MakeRun
    from testbed.spec.errors import Fault

#: The key of the context's `meta` that holds the words after `--`.
COMMAND = "command"


class CommandAtEnd(TyperCommand):
    """A command whose line ends in `-- CMD…`; the arguments before it may be left out."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- CMD…"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after `--` in the context, and parse the others."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@takes_container_options
def launch(
    context: typer.Context,
    topology: Annotated[Path | None, TOPOLOGY] = None,
    name: Name = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="start only on these workers, in the order of their ranks; default: on all"),
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, metavar="K", help="processes to start on each worker")] = 1,
    on_host: Annotated[
        bool,
        typer.Option(
            "--on-host",
            help="start a program of this machine in each worker's network namespace, instead of one in its container",
        ),
    ] = False,
    backend: Annotated[
        Literal["wan"] | None,
        typer.Option(
            help="give scripts that ask for gloo this backend; wan follows the controller's plans (docs/sync.md)"
        ),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:OPTION=VALUE,…",
            help="wrap the script's optimizer in a scheme, such as diloco:every=32 (docs/machines.md)",
        ),
    ] = None,
    containers: ContainerOptions = ContainerOptions(),  # noqa: B008
    strict: Strict = False,
    quiet: Quiet = False,
    json_: Annotated[
        bool,
        typer.Option("--json", help="print the run's summary as one JSON object; all else goes to the error output"),
    ] = False,
    open_: Open = False,
    port: Port = None,
) -> None:
    """Start a program on every worker of a network at once, with the environment variables that torchrun sets.

    With TOPOLOGY, its network is built first, and the containers see the current folder, or that of --files.
    Without TOPOLOGY, the program starts on a network that is up. Either way it is a run, with a report and a verdict.
    """
    words = context.meta[COMMAND]
    if not words:
        raise bad_input("launch: no command was given", "testbed launch … -- python train.py")
    if topology is not None and name is not None:
        raise bad_input(f"{topology} and --name {name}: can't be given together", "one of them")
    if containers != ContainerOptions() and (on_host or topology is None):
        remedy = "TOPOLOGY, or these options of `testbed network up TOPOLOGY` first"
        rule = "can't change the containers of a network that is up"
        if on_host:
            remedy, rule = "these options or --on-host", "can't be given with --on-host, which starts no container"
        raise bad_input(f"--files, --image, --renew-image, --tmp, --shm and --out: {rule}", remedy)
    if topology is None and port is not None:
        remedy = "--open, which opens the network's page, or TOPOLOGY"
        raise bad_input(f"--port {port}: a network that is up has its own port", remedy)
    from testbed.run.execute import execute_experiment
    from testbed.run.programs.run import run_of
    from testbed.run.programs.standing import StandingRun, standing_experiment
    from testbed.spec.experiment import Experiment
    from testbed.spec.topology import Topology

    in_containers = {
        "files": str(containers.files or Path.cwd()),
        "image": containers.image,
        "renew_image": containers.renew,
        **{room: f"{size:.0f}B" for room, size in containers.scratch.items()},
    }
    train = {
        "command": words,
        "workers": None if workers is None else workers.split(","),
        "nproc": nproc,
        "on_host": on_host,
        "backend": backend,
        "scheme": scheme,
        **({} if on_host else in_containers),
    }
    with interruptible_run("every program was ended"), _faults_of_options():
        if topology is not None:
            experiment = Experiment.of_program(Topology.load(topology.absolute()), train)
            need_root()
            make_run: MakeRun = run_of
        else:
            network = chosen_network(name)
            experiment = standing_experiment(network, train)
            make_run = partial(StandingRun, network=network)
        # A network that is up serves its page itself.
        page_port = None if topology is None else api_port(open_, port)
        display = progress_display(quiet, beside_output=json_, port=page_port)
        if topology is None and open_:
            display.say(_shown_page(network))
        outcome = execute_experiment(experiment, "launch", strict, page, display, make_run)
    if json_:
        tell(outcome, as_json=True)
    elif quiet:
        tell_reasons(outcome)
    if not outcome.finished or outcome.page is None or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


def _shown_page(network: str) -> str:
    from testbed.api.entry import PAGE, ApiPort, show_in_browser
    from testbed.emulation.label import state_folder

    file = state_folder(network) / PAGE
    if not file.exists():
        raise bad_input(
            f"--open: the network {network} was started without its page", "`testbed network up TOPOLOGY --open` first"
        )
    return show_in_browser(file, ApiPort(shown=True))


@contextmanager
def _faults_of_options() -> Iterator[None]:
    """Print faults of the experiment's `train`, with the options that its fields came from. Exit with 2."""
    from testbed.spec.errors import SpecError

    try:
        yield
    except SpecError as error:
        if not all(field.startswith("train.") for field in error.fields):
            raise
        raise fail(BAD_INPUT, "\n".join(map(_of_option, error.faults))) from None


def _of_option(fault: Fault) -> str:
    field = fault.field.split(".")[1].replace("_", "-")
    place = "the command" if field == "command" else f"--{field}"
    return f"{place}: {fault.problem}\n    write instead: {fault.remedy}"
