"""`testbed-controller`: a controller for members on machines of their own (docs/machines.md).

It knows nothing of the network but what members measure; every pair counts as equally fast until then. Members join
over TCP. Where that is beyond the loopback all is encrypted, and each comes with a certificate of its own, in a folder
that is made for it; with --no-tls, and on the loopback, each comes with a token instead, and nothing is encrypted.
When a training is over, the members that come next begin another one, recorded in a folder of its own. Ends with 0 on
SIGTERM or SIGINT, with 2 when something can't be used, and with 3 without a C compiler.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from testbed.api.server import PortTaken
from testbed.certificates import AUTHORITY_KEY, make_certificates
from testbed.controller.model.clocks import SYSTEM
from testbed.controller.model.identity import Identities
from testbed.controller.model.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.controller.serve import Endpoints, serve_attached, serve_trainings
from testbed.controller.server.member_server import TcpEndpoint
from testbed.controller.server.secret_file import read_secret, write_secret
from testbed.controller.service import ControllerService
from testbed.errors import BAD_INPUT, NOT_HERE, ending_of
from testbed.planning import Edge, Member, PolicyError, View
from testbed.planning.events import load as load_simulator
from testbed.plugins import is_file
from testbed.protocol import Job
from testbed.sockets import CONTROLLER, Tls

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
            view=View(known, {}, {}, edges, model_bytes, SYSTEM.unix(), "measured"), policy=policy, codec=codec
        ),
        elastic=None if quorum is None else Elasticity(quorum=quorum),
    )


def main() -> int:
    """Run until a signal; the exit code."""
    args = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return _run(args)
    except Exception as error:
        code, text = ending_of(error)
        print(f"testbed-controller: {text}", file=sys.stderr)
        return code
    finally:
        if args.attached is not None:
            shutil.rmtree(args.attached, ignore_errors=True)


def _run(args: argparse.Namespace) -> int:
    try:
        names = args.members.split(",")
        host, port = _address(args.listen)
        secret = _secret(args.secrets, args.token_file)
        spec = _spec(args, names, secret)
        args.out.mkdir(parents=True, exist_ok=True)
        tls = args.tls or (None if args.no_tls or _is_loopback(host) else _certificates(args.secrets / "tls", names))
        if tls is None:
            write_tokens(args.secrets, Identities(names, secret))
            _say("nothing is encrypted", args.secrets / "controller.key", args.secrets, "{}.token", names)
        elif not args.tls:
            _say("all connections are encrypted", tls.parent / AUTHORITY_KEY, tls.parent, "{}", names)
        endpoints = Endpoints(
            args.out / "control",
            args.out / "admin.sock",
            args.secrets / "http.key",
            TcpEndpoint(host, port, Tls(tls) if tls else None, _inherited(args.listening)),
            args.http,
        )
        load_simulator()
        if args.attached is not None:
            asyncio.run(serve_attached(spec, endpoints, args.out))
        else:
            told = _Told(waits=not args.once)
            asyncio.run(serve_trainings(_trainings(args, names, secret), endpoints, told, args.once))
            return 1 if args.once and told.failed else 0
    except (ValueError, PolicyError) as error:
        print(f"testbed-controller: {error}", file=sys.stderr)
        return BAD_INPUT
    except PortTaken:
        print(f"testbed-controller: --http {args.http}: another program has this port; write another", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        if error.errno in NOT_HERE:
            raise
        print(f"testbed-controller: {error}", file=sys.stderr)  # an address that is taken, and the like
        return BAD_INPUT
    return 0


def _spec(args: argparse.Namespace, names: Sequence[str], secret: str) -> ControllerSpec:
    return spec_of(names, secret, args.model_bytes, _policy(args.policy), args.codec, args.round_timeout, args.quorum)


def _policy(name: str) -> str:
    """Return a policy's name, or its file by the whole path."""
    return str(Path(name).resolve()) if is_file(name) else name


def _trainings(args: argparse.Namespace, names: Sequence[str], secret: str) -> Iterator[tuple[ControllerSpec, Path]]:
    """Yield the spec and the directory of each training: `--out`, and for the next ones `2`, `3`, … in it."""
    yield _spec(args, names, secret), args.out
    for number in count(2):
        if not (out := args.out / str(number)).exists():  # that of a controller before this one
            out.mkdir()
            yield _spec(args, names, secret), out


class _Told:
    """Says on standard error that a training is over, and with `waits` that another one may begin."""

    def __init__(self, waits: bool) -> None:
        self.failed = False
        self._waits = waits

    def __call__(self, controller: ControllerService, out: Path) -> None:
        """Say what a training came to, and where its records are."""
        self.failed = controller.state == "failed"
        how = f"failed: {controller.failure}" if self.failed else "is done"
        more = ". Members that come now begin the next one" if self._waits else ""
        print(f"testbed-controller: the training in {out} {how}{more}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testbed-controller", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", required=True, metavar="A,B", help="their names, with commas between")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where members join")
    # A descriptor of a socket that listens there already: whoever starts this program has bound the port for it.
    parser.add_argument("--listening", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model-bytes", type=int, required=True, metavar="N", help="what a member adds to a round")
    secrets_help = "keys, and what members show; made if missing"
    parser.add_argument("--secrets", type=Path, default=Path("secrets"), metavar="DIR", help=secrets_help)
    encryption = parser.add_mutually_exclusive_group()
    encryption.add_argument("--tls", type=Path, metavar="DIR", help="the controller's folder of `testbed certificates`")
    encryption.add_argument("--no-tls", action="store_true", help="encrypt nothing, and let members in by tokens")
    parser.add_argument("--token-file", help=argparse.SUPPRESS)
    parser.add_argument("--policy", default="mst", help="how plans are made: a policy, or a file, ./mine.py")
    parser.add_argument("--codec", default="fp32", help="what strategies' tensors become on their way")
    parser.add_argument("--round-timeout", type=float, default=120.0, metavar="S", help="when a round has failed")
    parser.add_argument("--quorum", type=int, metavar="N", help="let members go and come while N are left")
    once_help = "end with the first training: with 0 if it is done, with 1 if it failed"
    parser.add_argument("--once", action="store_true", help=once_help)
    parser.add_argument("--http", type=int, metavar="PORT", help="the API and its page on 127.0.0.1")
    attached_help = "end with standard input, once members that train are done, and take this folder away"
    parser.add_argument("--attached", type=Path, metavar="DIR", help=attached_help)
    parser.add_argument("--out", type=Path, default=Path("run"), metavar="DIR", help="what happens is recorded there")
    return parser


def _certificates(folder: Path, names: Sequence[str]) -> Path:
    """The controller's among the certificates in a folder, where those that are missing are made."""
    for _ in make_certificates(folder, names):
        pass
    return folder / CONTROLLER


def _say(encrypted: str, kept: Path, folder: Path, own: str, names: Sequence[str]) -> None:
    """Print what each member shows, and where that goes."""
    copies = "".join(f"\n    {folder / own.format(name)}   to the machine of {name}" for name in names)
    print(f"testbed-controller: {encrypted}. Copy{copies}\nand {kept} to none.", file=sys.stderr)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _secret(folder: Path, shared: str | None) -> str:
    """The controller's own, which is made if it is missing. SecretError when others can read it.

    In earlier versions one token, the `shared` file, let every member in: whoever had it could be any of them.
    """
    if shared is not None:
        raise ValueError(
            f"--token-file {shared}: one token for all members is not taken any more, since it tells none from "
            "another. Write --secrets DIR, copy DIR/NAME.token to the machine of each member, and remove the old file"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = folder / "controller.key"
    if not own.exists():
        write_secret(own, secrets.token_hex(32) + "\n")
    return read_secret(own)


def write_tokens(folder: Path, identities: Identities) -> None:
    """Write each member's token beside the key that it comes from, for its machine and no other."""
    for name in identities.members:
        write_secret(folder / f"{name}.token", identities.token(name) + "\n")


def _inherited(descriptor: int | None) -> socket.socket | None:
    return None if descriptor is None else socket.socket(fileno=descriptor)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--listen {text}: write HOST:PORT, such as 0.0.0.0:7000")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
