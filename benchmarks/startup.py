"""Time how long networks take to come up and down: without containers beside Mininet's, and with containers.

    sudo python -m benchmarks.startup

A row is a network: a ring of ten sites by the testbed and by Mininet, 64 workers in containers, and geant-40. A network
is up when the call that builds it returns. Afterwards every link of both subjects is pinged, which shows that it
carries packets, and its round trip.

The last table has the seconds from `testbed launch` to the first step of PyTorch's DDP on two sites, started by Python
or by torchrun, whose agent has to import PyTorch before it starts the script. That import is timed beside it. The exit
code is 1 where a claim is missed.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.topo import Topo

from benchmarks.support.fidelity.subjects import recorded_complaints
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.shaping import open_shaper
from testbed.emulation.topo import WanTopo
from testbed.spec.topology import Topology
from tests.cli.standing import command, environment

ROOT = Path(__file__).parents[1]
GEANT = ROOT / "topologies" / "geant-40.yaml"

#: A ring of ten sites: a router and a worker each, a link to the next and one from worker to router.
SITES = 10
HOSTS = LINKS = 2 * SITES
RATE, DELAY = "100mbit", "10ms"
REPEATS, QUICK_REPEATS = 3, 1
#: The kernel takes namespaces apart after the call that ends a network has returned. No network waits for another's.
SETTLE_S = 1.0
PING = ("ping", "-nq", "-c", "3", "-i", "0.1", "-W", "2")
#: Claim: the testbed takes at most this part of Mininet's time.
RATIO = 0.5

#: Eight sites of eight workers each, in a ring.
CONTAINER_SITES = 8
UP_WITHIN_S, DOWN_WITHIN_S = 25.0, 10.0

VERB_LIMIT_S = 240.0

#: The programs that start the script. Besides its agent's import, torchrun may delay the first step by LATER_S.
STARTERS = ("python", "torchrun")
AGENT = "import torch.distributed.run"
LATER_S = 1.0
SCRIPT = ROOT / "examples" / "ddp.py"
FIRST_STEP = "step=0 "


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds that a network took to come up, and to go; and of a round trip over a link between two sites.

    The round trip is the longest of all these links, where it was looked at.
    """

    network: str
    up_s: float
    down_s: float
    round_trip_s: float | None = None


def main() -> int:
    """Measure and print. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    args = parser.parse()
    with tempfile.TemporaryDirectory() as name, open_shaper() as shaper:
        backend = shaper.name
        plain = _beside_mininet(Path(name), args.repeats)
        workers = 1 if args.quick else CONTAINER_SITES
        file = _write(Path(name), "containers", ring(CONTAINER_SITES, workers))
        standing = [_standing(f"{CONTAINER_SITES * workers} container hosts", file)]
        if not args.quick:
            standing.append(_standing("geant-40, a worker a site", GEANT))
        first_steps = _first_steps(_write(Path(name), "two", pair()), args.repeats)
    ratio = plain[0].up_s / plain[1].up_s
    figures = {
        "without_containers": [asdict(each) for each in plain],
        "ratio": ratio,
        "containers": [asdict(each) for each in standing],
        "first_steps": asdict(first_steps),
        "repeats": args.repeats,
    }
    show(
        [_plain_table(plain, ratio, args.repeats), _standing_table(standing), _step_table(first_steps, args.repeats)],
        figures,
        as_json=args.json,
        backend=backend,
    )
    in_time = standing[0].up_s <= UP_WITHIN_S and standing[0].down_s <= DOWN_WITHIN_S
    return 0 if ratio <= RATIO and in_time and first_steps.later_s <= LATER_S else 1


def ring(sites: int, workers: int) -> dict[str, Any]:
    """Return a topology file's value: sites in a ring, with `workers` workers each."""
    names = [f"s{number}" for number in range(sites)]
    pairs = zip(names, names[1:] + names[:1], strict=True)
    return {
        "name": "ring",
        "sites": {name: {"workers": workers} for name in names},
        "links": [{"between": list(pair), "rate": RATE, "delay": DELAY} for pair in pairs],
    }


def pair() -> dict[str, Any]:
    """Return a topology file's value: two sites of one worker each."""
    return {
        "name": "two",
        "sites": {name: {"workers": 1} for name in ("paris", "tokyo")},
        "links": [{"between": ["paris", "tokyo"], "rate": RATE, "delay": DELAY}],
    }


def _write(folder: Path, name: str, value: Mapping[str, Any]) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


# Without containers -----------------------------------------------------------------------------------------------


class TclinkTopo(Topo):  # type: ignore[misc]
    """The same network in Mininet's own terms, without the routes between sites, which saves Mininet time."""

    def build(self, topology: Topology) -> None:
        """Add the hosts and the shaped links; Mininet calls this."""
        for site in topology.sites:
            self.addHost(f"{site}-r", ip=None)
        for number, worker in enumerate(topology.workers):
            self.addHost(worker.name, ip=f"10.0.{number}.2/24", defaultRoute=f"via 10.0.{number}.1")
            gateway = {"ip": f"10.0.{number}.1/24"}
            lan = _tclink(topology.lan.rate, topology.lan.delay)
            self.addLink(f"{worker.site}-r", worker.name, params1=gateway, **lan)
        for number, link in enumerate(topology.links.values()):
            if link.source < link.target:
                near, far = ({"ip": f"10.1.{number}.{host}/30"} for host in (1, 2))
                wan = _tclink(link.state.rate_bps, link.state.delay_s)
                self.addLink(f"{link.source}-r", f"{link.target}-r", params1=near, params2=far, **wan)


def _tclink(rate_bps: float, delay_s: float) -> dict[str, Any]:
    return {"cls": TCLink, "bw": rate_bps / 1e6, "delay": f"{delay_s * 1e3:g}ms"}


def _beside_mininet(folder: Path, repeats: int) -> list[Taken]:
    """Build the testbed's and Mininet's network in turns. Returns the medians."""
    file = _write(folder, "ring", ring(SITES, 1))
    subjects: dict[str, Callable[[], Topo]] = {
        "testbed": lambda: WanTopo(file),
        "Mininet": lambda: TclinkTopo(Topology.load(file)),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in subjects}
    Mininet.inited = True  # its first start would raise limits of this machine
    for number in range(repeats):
        for name, make in subjects.items():
            progress(f"{HOSTS} hosts and {LINKS} shaped links by {name}, {number + 1} of {repeats}")
            with recorded_complaints():
                taken[name].append(_once(name, make))
            time.sleep(SETTLE_S)
    return [_median(name, all_) for name, all_ in taken.items()]


def _median(name: str, taken: Sequence[Taken]) -> Taken:
    trips = [each.round_trip_s for each in taken if each.round_trip_s is not None]
    return Taken(
        name,
        up_s=statistics.median(each.up_s for each in taken),
        down_s=statistics.median(each.down_s for each in taken),
        round_trip_s=statistics.median(trips),
    )


def _once(name: str, make: Callable[[], Topo]) -> Taken:
    began = time.monotonic()
    net = Mininet(topo=make(), controller=None)
    try:
        net.start()
        up_s = time.monotonic() - began
        round_trip_s = _longest_round_trip(net)
    finally:
        ending = time.monotonic()
        net.stop()
    return Taken(name, up_s, time.monotonic() - ending, round_trip_s)


def _longest_round_trip(net: Mininet) -> float:
    """Ping over every link, and return the longest of the least round trips between two sites, in seconds."""
    pings = [
        (link, link.intf1.node.popen([*PING, link.intf2.IP()], stdout=subprocess.PIPE, text=True)) for link in net.links
    ]
    longest = 0.0
    for link, ping in pings:
        closing = re.search(r"= ([\d.]+)/", ping.communicate()[0])
        if closing is None:
            raise RuntimeError(f"the network is up, but nothing passes {link}")
        if link.intf2.node.name.endswith("-r"):
            longest = max(longest, float(closing[1]) / 1e3)
    return longest


def _plain_table(taken: Sequence[Taken], ratio: float, repeats: int) -> Table:
    title = f"{HOSTS} hosts and {LINKS} shaped links in a ring, without containers; median of {repeats}"
    verdict = "as it should" if ratio <= RATIO else "more than it should"
    note = f"up in {ratio:.2f} of Mininet's time, {verdict} (at most {RATIO:g}); Mininet's has no routes between sites"
    trip = f"round trip over a link of {DELAY} each way"
    rows = [[each.network, *_seconds(each), f"{1e3 * (each.round_trip_s or 0):.2f} ms"] for each in taken]
    return Table(title, ["", "up", "down", trip], rows, [note])


# With containers --------------------------------------------------------------------------------------------------


def _standing(title: str, file: Path) -> Taken:
    """Time a network's start and end by the program's verbs, with the start of the interpreter."""
    progress(title)
    name = f"startup-{os.getpid()}"
    try:
        began = time.monotonic()
        _verb("network", "up", str(file), "--name", name)
        up = time.monotonic()
        _verb("network", "down", "--name", name)
        down = time.monotonic()
    except BaseException:
        _verb("network", "clean", "--name", name)
        raise
    return Taken(title, up - began, down - up)


def _verb(*words: str) -> None:
    subprocess.run(command(*words), stdout=subprocess.DEVNULL, check=True, env=environment(), timeout=VERB_LIMIT_S)


def _standing_table(taken: Sequence[Taken]) -> Table:
    title = "With containers, by `testbed network up` and `network down`"
    note = f"64 hosts should be up within {UP_WITHIN_S:g} s and down within {DOWN_WITHIN_S:g} s"
    return Table(title, ["", "up", "down"], [[each.network, *_seconds(each)] for each in taken], [note])


# A program's first step --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Seconds to the script's first step, by the program that starts it, and those of torchrun's import."""

    python_s: float
    torchrun_s: float
    import_s: float

    @property
    def later_s(self) -> float:
        """The seconds that the first step comes later under torchrun, without its agent's import."""
        return self.torchrun_s - self.python_s - self.import_s


def _first_steps(file: Path, repeats: int) -> FirstSteps:
    """Start the script by each of STARTERS in turns. Returns the medians."""
    taken: dict[str, list[float]] = {name: [] for name in (*STARTERS, AGENT)}
    for number in range(repeats):
        for starter in STARTERS:
            progress(f"{starter} {SCRIPT.name}, {number + 1} of {repeats}")
            taken[starter].append(_first_step_s(file, starter))
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", AGENT], check=True)
        taken[AGENT].append(time.monotonic() - began)
    return FirstSteps(*(statistics.median(seconds) for seconds in taken.values()))


def _first_step_s(file: Path, starter: str) -> float:
    """Launch the script, and return the seconds until its first step is printed.

    Raises:
        RuntimeError: It printed none, or the launch failed.
    """
    words = command("launch", file, "--", starter, SCRIPT.name, "--steps", "1")
    began, first_s = time.monotonic(), None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the workers are another user
        shutil.copy(SCRIPT, folder)
        with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as launch:
            assert launch.stdout is not None
            for line in launch.stdout:
                if first_s is None and FIRST_STEP in line:
                    first_s = time.monotonic() - began
    if first_s is None or launch.returncode:
        raise RuntimeError(f"{starter} {SCRIPT.name} ended with {launch.returncode} and printed no first step")
    return first_s


def _step_table(steps: FirstSteps, repeats: int) -> Table:
    title = f"From `testbed launch` to the first step on two sites; median of {repeats}"
    note = f"beside the import, torchrun is {steps.later_s:+.2f} s later (at most {LATER_S:g} s)"
    rows = [
        [f"python {SCRIPT.name}", f"{steps.python_s:.2f} s"],
        [f"torchrun {SCRIPT.name}", f"{steps.torchrun_s:.2f} s"],
        ["its agent's import of PyTorch", f"{steps.import_s:.2f} s"],
    ]
    return Table(title, ["", "first step"], rows, [note])


def _seconds(taken: Taken) -> list[str]:
    return [f"{taken.up_s:.2f} s", f"{taken.down_s:.2f} s"]


if __name__ == "__main__":
    run_program(main)
