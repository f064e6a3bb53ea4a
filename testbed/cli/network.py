"""The commands that build networks and remove them: `up`, `down` and `clean`; and how a command picks its network."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from testbed.cli.console import (
    CANNOT,
    Open,
    Port,
    Quiet,
    TopologyFile,
    api_port,
    bad_input,
    fail,
    interruptible_verb,
    need_root,
    progress_display,
)
from testbed.cli.container_options import ContainerOptions, program_containers, takes_container_options
from testbed.spec.units import count

if TYPE_CHECKING:
    import docker


#: The pattern of a network's name, the same as of a topology's: the name becomes part of the containers' names.
NEW_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")

T = TypeVar("T")

#: The remedy where no network is up.
START = "`testbed network up TOPOLOGY` first"

Name = Annotated[
    str | None, typer.Option("--name", metavar="N", help="the network's name; needed only where several are up")
]


@takes_container_options
def up(
    topology: TopologyFile,
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="the network's name; default: the topology's name")
    ] = None,
    backend: Annotated[
        Literal["auto", "netem", "userspace"],
        typer.Option("--backend", help="how links are shaped; auto is the better one that this machine can run"),
    ] = "auto",
    containers: ContainerOptions = ContainerOptions(),  # noqa: B008
    open_: Open = False,
    port: Port = None,
    cli: Annotated[
        bool, typer.Option("--cli", help="work at Mininet's prompt; the network is taken down when the prompt ends")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Build a network with its containers, replay its traces, and leave it up in the background."""
    from testbed.api.entry import PAGE, show_in_browser
    from testbed.emulation.daemon import bring_up
    from testbed.emulation.label import state_folder
    from testbed.spec.topology import Topology

    if cli and (open_ or port is not None):
        raise bad_input("--cli: can't be given with --open or --port", "one of them")
    wanted = Topology.load(topology.absolute())
    name = new_name(name or wanted.name)
    need_root()
    workers = program_containers(containers)
    with interruptible_verb(": the network was taken down again"):
        display = progress_display(quiet, port=api_port(open_, port))
        if cli:
            from testbed.emulation.daemon.prompt import prompt_on

            prompt_on(name, wanted, backend, workers, display.step)
            return
        bring_up(name, wanted.file, backend, workers, display.step, display.api_port)
    # The network is up: an interrupt no longer takes it down.
    verbs = f"`testbed network list` shows it, `testbed network down --name {name}` takes it down"
    display.say(f"  {name} is up; {verbs}")
    if display.api_port is not None:
        display.say(show_in_browser(state_folder(name) / PAGE, display.api_port))


def down(name: Name = None) -> None:
    """Take a network down, with its containers."""
    from testbed.emulation.cleanup import clean

    name = chosen_network(name)
    _with_engine(lambda client: clean(client, name))
    typer.echo(f"{name} is down")


def clean(
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="remove this network alone, even if it is up")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="remove every network and run of this machine, even those that are up")
    ] = False,
) -> None:
    """Remove what crashed networks and runs left; those that are up stay unless they are named or --all is given.

    Only what carries the testbed's label is touched.
    """
    from testbed.emulation import cleanup, label

    if name is not None and not label.is_name(name):
        raise bad_input(f"--name {name}: {name!r} can't be the name of a network", "small letters, digits and dashes")
    if name is not None and all_:
        raise bad_input(f"--all and --name {name}: can't be given together", "one of them")
    if all_:
        for line in _listed():
            typer.echo(line)
    ends_all = all_ or name is not None
    done = _with_engine((lambda client: cleanup.clean(client, name)) if ends_all else cleanup.clean_crashed)
    found = {"network": done.networks, "container": done.containers, "process": done.processes}
    typer.echo(f"removed: {', '.join(count(len(there), noun) for noun, there in found.items())}")
    # A run that was just ended still owns its network while it looks for remains.
    for network in () if ends_all else label.networks():
        if (owner := label.owner(network)) is not None:
            typer.echo(
                f"{network} is still running (process {owner.pid}); `testbed network clean --name {network}` removes it"
            )


def _listed() -> list[str]:
    from testbed.emulation.cleanup import find, with_engine
    from testbed.emulation.containers.engine import ENGINE_ERRORS, EngineError

    need_root()
    try:
        found = with_engine(find)
    except (EngineError, *ENGINE_ERRORS):  # the clean-up that follows reports it
        found = find(None)
    lines = []
    for each in found:
        there = {"container": each.containers, "process": each.processes}
        state = f"running, process {each.owner.pid}" if each.owner else "left by a crash"
        lines.append(f"{each.network}: {state}; {', '.join(count(len(of), noun) for noun, of in there.items())}")
    return lines


def _with_engine(action: Callable[[docker.DockerClient | None], T]) -> T:
    """Return what `action` returns, given a client of the Docker engine. Exit if the engine fails."""
    from testbed.emulation.cleanup import with_engine
    from testbed.emulation.containers.engine import EngineError

    need_root()
    try:
        return with_engine(action)
    except EngineError as error:
        raise fail(CANNOT, f"containers may be left, everything else was removed: {error}") from None


def chosen_network(name: str | None) -> str:
    """Return the network of this name, or the only one that is up. Exit if there is none, or several and no name."""
    from testbed.emulation.daemon import networks_up

    need_root()
    return _chosen(name, networks_up(), START)


def chosen_network_or_run(name: str | None) -> str:
    """Return the network that is up, or the run, of this name; without a name the only one, networks before runs."""
    from testbed.emulation.daemon import networks_of_runs, networks_up

    need_root()
    up, runs = networks_up(), networks_of_runs()
    return name if name is not None and name in runs else _chosen(name, up or runs, f"{START}, or `testbed run`")


def _chosen(name: str | None, names: list[str], start: str) -> str:
    """Return the network called `name`, or the only one. `start` is the error's remedy if no network is up."""
    if name in names:
        return name
    if name is None and len(names) == 1:
        return names[0]
    there = ", ".join(names)
    if name is not None:
        raise bad_input(f"--name {name}: no such network is up", f"one of {there}" if names else start)
    if not names:
        raise bad_input("no network is up", start)
    raise bad_input(f"several networks are up: {there}", f"--name with one of {there}")


def new_name(name: str) -> str:
    """Return `name`, or exit with 2 if it is malformed or a network of this name is up."""
    from testbed.emulation import label

    if not NEW_NAME.fullmatch(name):
        remedy = "at most 31 small letters, digits and dashes, a letter or digit first"
        raise bad_input(f"--name {name}: can't be the name of a network", remedy)
    if label.owner(name) is not None:
        remedy = f"--name with another name, or `testbed network down --name {name}` first"
        raise bad_input(f"a network named {name} is already up", remedy)
    return name
