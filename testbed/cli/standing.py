"""The verbs that ask a network that is up, or work in it: exec, status, link, swap."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from testbed.cli.console import BAD_INPUT, CANNOT, FAILED, TopologyFile, fail, link_argument

#: As for a topology's own name: it becomes part of the containers'.
NEW_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")

T = TypeVar("T")

if TYPE_CHECKING:
    from testbed.api.client import ApiClient

Json = Annotated[bool, typer.Option("--json", help="for programs")]
Name = Annotated[str | None, typer.Option("--name", metavar="N", help="which network; needed where several are up")]


def exec_(
    host: Annotated[str, typer.Argument(metavar="HOST", help="a worker such as paris-w0, or a router: paris-r")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="the program and its arguments")],
    name: Name = None,
) -> NoReturn:
    """Run a program of this machine in a host's network namespace; its exit code is the program's."""
    from testbed.emulation import label
    from testbed.emulation.network import namespace
    from testbed.emulation.network.names import Names, without_proxies
    from testbed.emulation.process import ProcessIdentity

    name = network_up(name)
    hosts = asked(name, lambda network: network.status())["hosts"]
    if host not in hosts:
        raise fail(BAD_INPUT, f"no host {host} in {name}\n    write instead: one of {', '.join(hosts)}")
    try:
        namespace.enter(ProcessIdentity(hosts[host]["pid"], hosts[host]["start_ticks"]))
        Names(label.control_folder(name)).take_on(host, label.domain_name({label.ENVIRONMENT: name}))
    except ProcessLookupError:
        raise fail(FAILED, f"the container of {host} has ended; take the network down and up again") from None
    # With the network's label, so that what is started here ends with the network at the latest.
    environment = {**without_proxies(os.environ), label.ENVIRONMENT: name}
    os.execvpe("nsenter", ["nsenter", "--", *command], environment)  # which only starts it, with a shell's exit codes


def status(name: Name = None, json_: Json = False) -> None:
    """Show the networks that are up: hosts with addresses, links with the state in force now."""
    from testbed.cli.tables import print_status
    from testbed.emulation import label
    from testbed.emulation.daemon.discovery import networks_up

    need_root()
    names = networks_up() if name is None else [network_up(name)]
    found = [asked(each, lambda network: network.status()) for each in names]
    # An experiment that runs has a network too; a killed testbed may have left one.
    left = [other for other in label.networks() if name is None and other not in names]
    others = {other: owner.pid if (owner := label.owner(other)) else None for other in left}
    if json_:
        typer.echo(json.dumps({"networks": found, "runs": [n for n, pid in others.items() if pid]}, indent=1))
        return
    print_status(found, others)


def link(
    link: Annotated[
        str, typer.Argument(metavar="'A->B'", help="a directed link, in quotes; or A-B", parser=link_argument)
    ],
    rate: Annotated[str | None, typer.Option(metavar="R", help="such as 50mbit")] = None,
    delay: Annotated[str | None, typer.Option(metavar="D", help="one way, such as 20ms")] = None,
    jitter: Annotated[str | None, typer.Option(metavar="J", help="such as 2ms")] = None,
    loss: Annotated[str | None, typer.Option(metavar="L", help="such as 0.1%")] = None,
    down: Annotated[bool, typer.Option("--down", help="take it down, both ways; routes follow")] = False,
    up: Annotated[bool, typer.Option("--up", help="bring it up, both ways")] = False,
    name: Name = None,
    json_: Json = False,
) -> None:
    """Change a link in place; a value given here stays in force over the link's trace."""
    from testbed.cli.tables import print_link
    from testbed.link import link_name

    given = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss}
    values: dict[str, str | bool] = {key: value for key, value in given.items() if value is not None}
    if down and up:
        raise fail(BAD_INPUT, f"{link}: --down and --up at once\n    write instead: one of them")
    if not values and not down and not up:
        raise fail(BAD_INPUT, f"{link}: nothing to change\n    write instead: --rate 50mbit, --delay 20ms, --down, …")
    if down or up:
        values["up"] = up
    state = asked(network_up(name), lambda network: network.change_link(link, values))
    if json_:
        typer.echo(json.dumps(state))
    else:
        print_link(link_name(state["source"], state["target"]), state)


def swap(topology: TopologyFile, name: Name = None, json_: Json = False) -> None:
    """Turn a network into another by difference: what stays the same keeps its connections."""
    from testbed.api.requests import SwapNetwork
    from testbed.cli.tables import print_swap
    from testbed.spec.topology import Topology

    file = topology.absolute()
    wanted = Topology.load(file)
    done = asked(network_up(name), lambda network: network.do(SwapNetwork(file=file)))
    if json_:
        typer.echo(json.dumps(done))
    else:
        print_swap(wanted.name, done)


def register(app: typer.Typer) -> None:
    """Give the program these verbs."""
    for verb in (status, link, swap):
        app.command()(verb)
    app.command("exec")(exec_)


def need_root() -> None:
    """Exit for who is not root: networks are root's."""
    if os.geteuid() != 0:
        raise fail(CANNOT, "making and entering networks needs root; run it with sudo")


def standing_network(name: str | None) -> str:
    """The network that is meant: the one named, or the only one that is up."""
    from testbed.emulation.daemon.discovery import networks_up

    need_root()
    return _meant(name, networks_up())


def network_up(name: str | None) -> str:
    """As `standing_network`; the one named may be that of a run that is under way."""
    from testbed.emulation.daemon.discovery import networks_of_runs, networks_up

    need_root()
    return name if name is not None and name in networks_of_runs() else _meant(name, networks_up())


def _meant(name: str | None, names: list[str]) -> str:
    if name in names:
        return name
    if name is None and len(names) == 1:
        return names[0]
    there = f"up: {', '.join(names)}" if names else "none is up"
    if name is not None:
        raise fail(BAD_INPUT, f"no network named {name} is up; {there}")
    remedy = f"--name with one of {', '.join(names)}" if names else "`testbed up TOPOLOGY` first"
    raise fail(BAD_INPUT, f"which network? {there}\n    write instead: {remedy}")


def new_name(name: str) -> str:
    """A name that a network may get now."""
    from testbed.emulation import label

    if not NEW_NAME.fullmatch(name):
        remedy = "at most 31 small letters, digits and dashes, a letter or digit first"
        raise fail(BAD_INPUT, f"--name {name}: no name for a network\n    write instead: {remedy}")
    if label.owner(name) is not None:
        remedy = f"--name with another, or `testbed down --name {name}` first"
        raise fail(BAD_INPUT, f"a network named {name} is up\n    write instead: {remedy}")
    return name


def asked(name: str, ask: Callable[[ApiClient], T]) -> T:
    """Return what a network answers. RequestRefused, RequestFailed."""
    from testbed.emulation.daemon.discovery import client

    return ask(client(name))
