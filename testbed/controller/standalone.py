"""A controller for members on machines of their own: `python -m testbed.controller.standalone --members a,b …`.

It knows nothing of the network but what members measure; every pair counts as equally fast until then. Members join
over TCP, each with a token of its own: the file NAME.token in the folder of secrets, which is made if it is not there.
With --tls all is encrypted, and each comes with its certificate instead.
Ends with 0 on SIGTERM or SIGINT, with 2 when something can't be used, and with 3 without a C compiler.
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

from testbed.compiler import CompilerError
from testbed.controller.identity import Identities
from testbed.controller.member_server import TcpEndpoint
from testbed.controller.secret_file import read_secret, write_secret
from testbed.controller.serve import Endpoints, serve
from testbed.controller.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.planning import Edge, Member, PolicyError, View
from testbed.planning.events import load as load_simulator
from testbed.protocol import Job
from testbed.tls import Tls

#: What an edge is taken for before anything was measured on it. All alike: only the measured ones tell them apart.
UNKNOWN = Edge(rate_bps=100e6, rtt_s=0.05)
#: How many rounds there will be is the members' affair; the controller only wonders whether a swap is still worth it.
ENDLESS = 1_000_000_000


def spec_of(
    members: Sequence[str],
    secret: str,
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
        secret=secret,
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
    parser.add_argument(
        "--secrets", type=Path, metavar="DIR", help="keys and members' tokens; made if they are missing"
    )
    parser.add_argument("--tls", type=Path, metavar="DIR", help="the controller's certificate (testbed certificates)")
    parser.add_argument("--token-file", help=argparse.SUPPRESS)
    parser.add_argument("--model-bytes", type=int, required=True, help="what a member contributes to a round")
    parser.add_argument("--policy", default="mst", help="how plans are made")
    parser.add_argument("--codec", default="fp32", help="what strategies' tensors become on their way")
    parser.add_argument("--round-timeout", type=float, default=120.0, metavar="S", help="when a round has failed")
    parser.add_argument("--quorum", type=int, metavar="N", help="let members go and come while N are left")
    parser.add_argument("--http", type=int, metavar="PORT", help="the dashboard on 127.0.0.1")
    parser.add_argument(
        "--attached", action="store_true", help="end with standard input, once members that train are done"
    )
    parser.add_argument("--out", type=Path, required=True, help="a directory for what happens")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        names = args.members.split(",")
        secret = _secret(args.secrets, args.token_file)
        tcp = TcpEndpoint(*_address(args.listen), Tls(args.tls) if args.tls else None)
        spec = spec_of(names, secret, args.model_bytes, args.policy, args.codec, args.round_timeout, args.quorum)
        args.out.mkdir(parents=True, exist_ok=True)
        if tcp.tls is None:
            write_tokens(args.secrets, Identities(names, secret))
        endpoints = Endpoints(
            args.out / "control",
            args.out / "admin.sock",
            args.secrets / "http.key",
            tcp,
            args.http,
        )
        load_simulator()
        asyncio.run(serve(spec, endpoints, args.out, args.attached))
    except (OSError, ValueError, PolicyError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 2
    except CompilerError as error:
        print(f"controller: {error}", file=sys.stderr)
        return 3
    return 0


def _secret(folder: Path | None, shared: str | None) -> str:
    """The controller's own, which is made if it is missing. ValueError when no folder is named for it, SecretError when
    others can read it.

    In earlier versions one token, the `shared` file, let every member in: whoever had it could be any of them.
    """
    if shared is not None:
        raise ValueError(
            f"--token-file {shared}: one token for all members is not taken any more, since it tells none from "
            "another. Write --secrets DIR, copy DIR/NAME.token to the machine of each member, and remove the old file"
        )
    if folder is None:
        raise ValueError("--secrets is missing: write a folder for keys and tokens, such as --secrets secrets")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = folder / "controller.key"
    if not own.exists():
        write_secret(own, secrets.token_hex(32) + "\n")
    return read_secret(own)


def write_tokens(folder: Path, identities: Identities) -> None:
    """Write each member's token beside the key that it comes from, for its machine and no other."""
    for name in identities.members:
        write_secret(folder / f"{name}.token", identities.token(name) + "\n")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--listen {text}: write HOST:PORT, such as 0.0.0.0:7000")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
