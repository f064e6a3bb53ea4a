"""Mininet's prompt, in a process that keeps a network up until the prompt ends."""

from __future__ import annotations

import signal

from mininet.cli import CLI
from mininet.log import error as show_error
from mininet.log import setLogLevel

from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.daemon.subject import serve_network
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import Backend, Step
from testbed.spec.topology import Topology

#: Two commands at the prompt that measure the throughput of a TCP connection.
USES_IPERF3 = "A iperf3 --server --one-off --daemon, then B iperf3 --client A"


class Prompt(CLI):
    """Mininet's prompt, for host names with dashes: Mininet reads `paris-w0 ping tokyo-w0` as a command `paris`.

    It runs commands until `exit` or the end of its input.
    """

    identchars = CLI.identchars + "-"

    def do_iperf(self, line: str) -> None:
        """Refuse Mininet's command, which kills every `iperf` process of this machine."""
        show_error(
            f"iperf: Mininet's command kills every iperf process of this machine\n    write instead: {USES_IPERF3}\n"
        )

    do_iperfudp = do_iperf

    def __init__(self, network: Network) -> None:
        setLogLevel("info")  # `nodes`, `net` and `dump` print at this level
        # Ctrl-C ends the command that runs at the prompt, not the network.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            super().__init__(network)
        finally:
            signal.signal(signal.SIGINT, before)


def prompt_on(name: str, topology: Topology, backend: Backend, containers: ProgramContainers, step: Step) -> None:
    """Bring a network up with these containers, run the prompt, and remove the network at the prompt's end.

    Meanwhile the network answers API requests as any other. Raises what `serve_network` raises.
    """
    with serve_network(topology, name=name, backend=backend, workers=containers, step=step) as (testbed, _):
        Prompt(testbed.network)
