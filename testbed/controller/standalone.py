"""A controller for members on machines of their own: `python -m testbed.controller.standalone --members a,b …`.

It knows nothing of the network but what members measure; every pair counts as equally fast until then. Members join
over TCP with the token, which is made if its file is not there. Ends with 0 on SIGTERM or SIGINT, and with 2 when
something can't be used.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.controller.serve import Endpoints, serve
from testbed.controller.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.planning import Edge, Member, PolicyError, View
from testbed.protocol import Job

#: What an edge is taken for before anything was measured on it. All alike: only the measured ones tell them apart.
UNKNOWN = Edge(rate_bps=100e6, rtt_s=0.05)
#: How many rounds there will be is the members' affair; the controller only wonders whether a swap is still worth it.
ENDLESS = 1_000_000_000


def spec_of(
    members: Sequence[str],
    token: str,
    model_bytes: int,
    policy: str,
    codec: str,
    timeout_s: float,
    quorum: int | None = None,
) -> ControllerSpec:
    """The spec of a run of one member a site, which trains what it likes. ValueError or PolicyError when it is none."""
    names = tuple(members)
    edges = {(a, b): UNKNOWN for a in names for b in names if a != b}
    known = tuple(Member(name, site=name, speed=1.0, uplink="", downlink="") for name in names)
    return ControllerSpec(
        members=names,
        token=token,
        jobs={name: Job(ENDLESS, round_timeout_s=timeout_s) for name in names},
        planning=PlanningSpec(
            view=View(known, {}, {}, edges, model_bytes, time.time(), "measured"), policy=policy, codec=codec
        ),
        elastic=None if quorum is None else Elasticity(quorum=quorum),
    )


def main() -> int:
    """Run until a signal; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.controller.standalone", description=__doc__)
    parser.add_argument("--members", required=True, help="their names, with commas between")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where members join")
    parser.add_argument("--token-file", type=Path, required=True, help="what lets members in; made if it is missing")
    parser.add_argument("--model-bytes", type=int, required=True, help="what a member contributes to a round")
    parser.add_argument("--policy", default="mst", help="how plans are made")
    parser.add_argument("--codec", default="fp32", help="what strategies' tensors become on their way")
    parser.add_argument("--round-timeout", type=float, default=120.0, metavar="S", help="when a round has failed")
    parser.add_argument("--quorum", type=int, metavar="N", help="let members go and come while N are left")
    parser.add_argument("--http", type=int, metavar="PORT", help="the dashboard on 127.0.0.1")
    parser.add_argument("--out", type=Path, required=True, help="a directory for what happens")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        names = args.members.split(",")
        token = _token(args.token_file)
        spec = spec_of(names, token, args.model_bytes, args.policy, args.codec, args.round_timeout, args.quorum)
        args.out.mkdir(parents=True, exist_ok=True)
        endpoints = Endpoints(args.out / "control.sock", args.out / "admin.sock", _address(args.listen), args.http)
        asyncio.run(serve(spec, endpoints, args.out))
    except (OSError, ValueError, PolicyError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 2
    return 0


def _token(path: Path) -> str:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16) + "\n")
    return path.read_text().strip()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--listen {text}: write HOST:PORT, such as 0.0.0.0:7000")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
