"""Measure what TLS costs: two members reduce a tensor over loopback, with and without TLS.

    python -m benchmarks.tls

A row is the median round with or without TLS, and the processor time of both members. Both take turns, so that a change
of the host's load affects both. A wide-area link is slower than loopback, so there the processor time is the cost.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.support.controller import Controller, controller
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed import sync
from testbed.certificates import make_certificates

MEMBERS = ("paris", "tokyo")
ELEMENTS = 6_000_000
WARM_UP, ROUNDS = 3, 20
REPEATS, QUICK_REPEATS = 5, 1


def member(pipe: Connection, address: str, name: str, tls: Path | None) -> None:
    """Reduce in one member, and send the seconds of its rounds and the processor seconds of one round."""
    torch.set_num_threads(1)
    tensor = torch.ones(ELEMENTS)
    with closing(pipe), sync.join(address, name, "127.0.0.1", tls=tls) as session:
        seconds = []
        for number in range(WARM_UP + ROUNDS):
            if number == WARM_UP:
                before = resource.getrusage(resource.RUSAGE_SELF)
            began = time.monotonic()
            session.allreduce(tensor)
            seconds.append(time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_SELF)
        session.finish("")
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        pipe.send((seconds[WARM_UP:], busy / ROUNDS))


def measure(at: Controller, folder: Path | None) -> tuple[float, float]:
    """Return the median seconds of a round, and the processor seconds of both members for one round."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name in MEMBERS:
        ours, theirs = context.Pipe()
        tls = folder / name if folder else None
        processes.append(context.Process(target=member, args=(theirs, at.address(name), name, tls)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return median(found[0][0]), sum(busy for _, busy in found)


def main() -> int:
    """Measure and print."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    args = parser.parse()
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with TemporaryDirectory(prefix="tls-") as folder:
        certificates = Path(folder)
        assert [*make_certificates(certificates, MEMBERS)]
        for number in range(args.repeats):
            for secured in times:
                progress(f"{'with' if secured else 'without'} TLS, {number + 1} of {args.repeats}")
                with controller(MEMBERS, 4 * ELEMENTS) as at:
                    times[secured].append(measure(at, certificates if secured else None))
    seconds, busy = ({secured: median(one[of] for one in found) for secured, found in times.items()} for of in (0, 1))
    ratios = [with_[0] / without[0] for without, with_ in zip(times[False], times[True], strict=True)]
    costs = [with_[1] / without[1] for without, with_ in zip(times[False], times[True], strict=True)]
    # Each of the two sends its half, and the mean of it: all bytes once in each direction.
    moved_gb = 2 * 4 * ELEMENTS / 1e9
    rows = [
        ("with TLS" if secured else "without", f"{1e3 * seconds[secured]:.0f} ms", f"{busy[secured] / moved_gb:.2f} s")
        for secured in times
    ]
    notes = [
        f"with TLS a round takes {median(ratios):.2f} times as long ({min(ratios):.2f} to {max(ratios):.2f}), and "
        f"{median(costs):.2f} times the processor's time ({min(costs):.2f} to {max(costs):.2f})",
    ]
    title = f"A round of {4 * ELEMENTS / 1e6:.0f} MB between two members over loopback"
    figures = {
        "repeats": args.repeats,
        "seconds_per_round": {"plain": seconds[False], "tls": seconds[True]},
        "processor_seconds_per_gb": {"plain": busy[False] / moved_gb, "tls": busy[True] / moved_gb},
        "tls_to_plain": {"seconds": ratios, "processor": costs},
    }
    columns = ("", "median round", "both processors, a GB moved")
    show([Table(title, columns, rows, notes)], figures, as_json=args.json)
    return 0


if __name__ == "__main__":
    run_program(main)
