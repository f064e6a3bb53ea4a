"""The commands for a network that is up: `network list`, `exec` and `swap`, and the groups `link` and `worker`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from testbed.cli.console import FAILED, Json, TopologyFile, bad_input, fail, link_argument, need_root
from testbed.cli.network import Name, chosen_network_or_run

if TYPE_CHECKING:
    from testbed.api.client import ApiClient

#: The name of the hidden command that reads `testbed link LINK …`. A link's name has a dash inside, so it differs.
OLDER_LINK = "older"


class LinkCommands(TyperGroup):
    """The group `link`. It also reads the older form, in which the link's name or an option follows `link`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. In a line of the older form, insert the name of the hidden command first."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [OLDER_LINK, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands without the hidden one."""
        return [name for name in super().list_commands(ctx) if name != OLDER_LINK]


link_app = typer.Typer(
    cls=LinkCommands, no_args_is_help=True, help="Change a link of a network or a run, or take the link down or up."
)
worker_app = typer.Typer(
    no_args_is_help=True, help="Add a worker to a network or an elastic run, or kill or restart a worker of a run."
)

Link = Annotated[
    str,
    typer.Argument(
        metavar="'A->B'", help="a directed link, in quotes; A-B names it without quotes", parser=link_argument
    ),
]
Rate = Annotated[str | None, typer.Option(metavar="R", help="the new rate, such as 50mbit")]
Delay = Annotated[str | None, typer.Option(metavar="D", help="the new one-way delay, such as 20ms")]
Jitter = Annotated[str | None, typer.Option(metavar="J", help="the new jitter, such as 2ms")]
Loss = Annotated[str | None, typer.Option(metavar="L", help="the new loss, such as 0.1%")]
Worker = Annotated[str, typer.Argument(metavar="WORKER", help="a worker's name, such as paris-w0")]


def exec_(
    host: Annotated[str, typer.Argument(metavar="HOST", help="a worker such as paris-w0, or a router such as paris-r")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="a program of this machine, with arguments")],
    name: Name = None,
) -> NoReturn:
    """Run a program of this machine in a host's network namespace; the exit code is the program's."""
    from testbed.emulation import label
    from testbed.emulation.network import namespace
    from testbed.emulation.network.names import Names, without_proxies
    from testbed.emulation.process import ProcessIdentity

    name = chosen_network_or_run(name)
    hosts = _api_of(name).status()["hosts"]
    if host not in hosts:
        raise bad_input(f"{name} has no host {host}", f"one of {', '.join(hosts)}")
    try:
        namespace.enter(ProcessIdentity(hosts[host]["pid"], hosts[host]["start_ticks"]))
        Names(label.control_folder(name)).take_on(host, label.domain_name({label.ENVIRONMENT: name}))
    except ProcessLookupError:
        raise fail(FAILED, f"{host}: its container has ended; take the network down and up again") from None
    # The network's label makes sure that what is started here ends with the network at the latest.
    environment = {**without_proxies(os.environ), label.ENVIRONMENT: name}
    # nsenter only starts the program, with a shell's exit codes.
    os.execvpe("nsenter", ["nsenter", "--", *command], environment)


def status(name: Name = None, json_: Json = False) -> None:
    """Show the networks that are up: hosts with addresses, and links with their current state."""
    from testbed.api.client import RequestFailed
    from testbed.cli.tables import print_status
    from testbed.emulation import label
    from testbed.emulation.daemon import networks_up

    need_root()
    names = networks_up() if name is None else [chosen_network_or_run(name)]
    found, silent = [], []
    for each in names:
        try:
            found.append(_api_of(each).status())
        except RequestFailed as error:  # the failure of one network must not hide the others
            silent.append(f"{each}: {error}")
    # A running experiment has a network too; a killed testbed may have left one.
    left = [other for other in label.networks() if name is None and other not in names]
    others = {other: owner.pid if (owner := label.owner(other)) else None for other in left}
    if json_:
        typer.echo(json.dumps({"networks": found, "runs": [n for n, pid in others.items() if pid]}, indent=1))
    else:
        print_status(found, others)
    if silent:
        raise fail(FAILED, "\n".join(silent))


@link_app.command("set")
def set_link(
    link: Link,
    rate: Rate = None,
    delay: Delay = None,
    jitter: Jitter = None,
    loss: Loss = None,
    name: Name = None,
    json_: Json = False,
) -> None:
    """Change a link in place; a value given here stays in force, also over the link's trace."""
    values = _given(rate=rate, delay=delay, jitter=jitter, loss=loss)
    if not values:
        raise bad_input(f"{link}: nothing to change", "--rate 50mbit, --delay 20ms, …")
    _change_link(link, values, name, json_)


@link_app.command("down")
def take_link_down(link: Link, name: Name = None, json_: Json = False) -> None:
    """Take a link down in both directions; routes go around it."""
    _change_link(link, {"up": False}, name, json_)


@link_app.command("up")
def bring_link_up(link: Link, name: Name = None, json_: Json = False) -> None:
    """Bring a link up again in both directions."""
    _change_link(link, {"up": True}, name, json_)


@link_app.command(OLDER_LINK, hidden=True)
def change_link(
    link: Link,
    rate: Rate = None,
    delay: Delay = None,
    jitter: Jitter = None,
    loss: Loss = None,
    down: Annotated[bool, typer.Option("--down", help="as `testbed link down`")] = False,
    up: Annotated[bool, typer.Option("--up", help="as `testbed link up`")] = False,
    name: Name = None,
    json_: Json = False,
) -> None:
    """Carry out the older command line `testbed link 'A->B' --rate 5mbit --down`, now `link set`, `down` and `up`."""
    values = _given(rate=rate, delay=delay, jitter=jitter, loss=loss)
    if down and up:
        raise bad_input(f"{link}: --down and --up can't be given together", "one of them")
    if not values and not down and not up:
        raise bad_input(f"{link}: nothing to change", "--rate 50mbit, --delay 20ms, --down, …")
    if down or up:
        values["up"] = up
    _change_link(link, values, name, json_)


def _given(**values: str | None) -> dict[str, str | bool]:
    return {key: value for key, value in values.items() if value is not None}


def _change_link(link: str, values: dict[str, str | bool], name: str | None, json_: bool) -> None:
    from testbed.cli.tables import print_link
    from testbed.link import link_name

    state = _api_of(chosen_network_or_run(name)).change_link(link, values)
    if json_:
        typer.echo(json.dumps(state))
    else:
        print_link(link_name(state["source"], state["target"]), state)


def swap(topology: TopologyFile, name: Name = None, json_: Json = False) -> None:
    """Turn a network that is up into another one; hosts and links that both have keep their connections."""
    from testbed.api.requests import SwapNetwork
    from testbed.cli.tables import print_swap
    from testbed.spec.topology import Topology

    file = topology.absolute()
    wanted = Topology.load(file)
    done = _api_of(chosen_network_or_run(name)).do(SwapNetwork(file=file))
    if json_:
        typer.echo(json.dumps(done))
    else:
        print_swap(wanted.name, done)


@worker_app.command()
def add(
    site: Annotated[
        str, typer.Argument(metavar="SITE", help="the site's name; the worker has the limits of the site's others")
    ],
    name: Name = None,
    json_: Json = False,
) -> None:
    """Start one more worker at a site; in an elastic run it joins the members and trains with them."""
    from testbed.api.requests import AddWorker

    added = _api_of(chosen_network_or_run(name)).do(AddWorker(site=site))
    typer.echo(json.dumps(added) if json_ else f"worker {added['worker']} is up at {added['address']}")


@worker_app.command()
def kill(worker: Worker, name: Name = None) -> None:
    """Kill a worker's program as a crash would, in an elastic run or under a strategy that survives the loss."""
    from testbed.api.requests import KillWorker

    _api_of(chosen_network_or_run(name)).do(KillWorker(worker=worker))
    typer.echo(f"{worker} was killed")


@worker_app.command()
def restart(worker: Worker, name: Name = None) -> None:
    """Start a worker's program again in an elastic run, in a new container."""
    from testbed.api.requests import RestartWorker

    _api_of(chosen_network_or_run(name)).do(RestartWorker(worker=worker))
    typer.echo(f"{worker} was started again")


def _api_of(name: str) -> ApiClient:
    """Return a client of the API of a network or run."""
    from testbed.emulation.daemon import client

    return client(name)
