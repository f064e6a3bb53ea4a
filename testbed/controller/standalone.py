"""`testbed-controller`: a controller for members on real machines (docs/machines.md).

It learns the network from the members' measurements; until then all pairs count as equally fast. Members join over TCP.
Beyond the loopback all connections are encrypted, and each member shows its own certificate, from a folder that is made
for it. With --no-tls, and on the loopback, each member shows a token instead, and nothing is encrypted. When a training
is over, the members that come next begin another one, which is recorded in its own folder. Ends with 0 on SIGTERM or
SIGINT, with 2 when an option, a file or an address can't be used, and with 3 without a C compiler.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import ipaddress
import logging
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, permutations
from pathlib import Path

from pydantic import ValidationError

from testbed.api.server import PortTaken
from testbed.certificates import AUTHORITY_KEY, make_certificates
from testbed.controller.model.clocks import SYSTEM
from testbed.controller.model.identity import Identities
from testbed.controller.model.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.controller.serve import Endpoints, serve_attached, serve_trainings
from testbed.controller.server.member_server import TcpEndpoint
from testbed.controller.server.secret_file import own_secret, write_secret
from testbed.errors import BAD_INPUT, ending_of
from testbed.plan import PLAIN_CODEC, bytes_through
from testbed.planning import Edge, Member, View
from testbed.planning.events import load as load_simulator
from testbed.protocol import Job
from testbed.schema import MOST_ROUND_TIMEOUT_S
from testbed.schemes import is_file
from testbed.sockets import CONTROLLER, Tls, host_and_port, port_of
from testbed.telemetry.store import read_json

log = logging.getLogger(__name__)

#: The assumed edge between members before the first measurement. All are alike: only measurements tell them apart.
UNKNOWN = Edge(rate_bps=100e6, rtt_s=0.05)
#: The assumed number of rounds. The members decide it; the controller needs it only to judge whether a swap pays off.
ENDLESS = 1_000_000_000


def main() -> int:
    """Serve until a signal, and return the exit code."""
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
        with _locked(args.out):
            tls = args.tls or (
                None if args.no_tls or _is_loopback(host) else _certificates(args.secrets / "tls", names)
            )
            if tls is None:
                identities = Identities(names, secret)
                for name in names:
                    write_secret(args.secrets / f"{name}.token", identities.token(name) + "\n")
                _print_keys("nothing is encrypted", args.secrets / "controller.key", args.secrets, "{}.token", names)
            elif not args.tls:
                _print_keys("all connections are encrypted", tls.parent / AUTHORITY_KEY, tls.parent, "{}", names)
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
                failed = asyncio.run(serve_trainings(_trainings(args, names, secret), endpoints, args.once))
                return 1 if failed else 0
    except PortTaken:
        print(f"testbed-controller: --http {args.http}: this port can't be used; choose another", file=sys.stderr)
        return BAD_INPUT
    except ValueError as error:
        print(f"testbed-controller: {_text_of(error)}", file=sys.stderr)
        return BAD_INPUT
    return 0


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the directory of the records. Raises ValueError if another controller has locked it."""
    with (out / "controller.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--out {out}: another controller records there; write another --out, or stop that controller"
            ) from None
        except OSError as error:  # some clusters' file systems have no locks
            log.warning("%s can't be locked, so another controller could record there too: %s", out, error)
        yield


def _text_of(error: ValueError) -> str:
    """Return the text of an error; of pydantic's errors the fields and sentences alone."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = ((its["loc"], its["msg"].removeprefix("Value error, ")) for its in error.errors(include_url=False))
    return "; ".join(": ".join((*map(str, place[-1:]), said)) for place, said in faults)


def _spec(args: argparse.Namespace, names: Sequence[str], secret: str) -> ControllerSpec:
    """Return the spec of a run with one member a site and any training. Raises ValueError for a wrong option."""
    edges = dict.fromkeys(permutations(names, 2), UNKNOWN)
    members = tuple(Member(name, site=name, speed=1.0, uplink="", downlink="") for name in names)
    # Rounds that are shorter than the view's bytes allow would pass for a proof of faster links.
    round_bytes = bytes_through(args.codec, args.model_bytes, PLAIN_CODEC)
    job = Job(ENDLESS, round_timeout_s=args.round_timeout, streams=args.streams, congestion=args.congestion)
    attached = args.attached is not None  # to a program, which reduces tensors of any size
    view = View(members, {}, {}, edges, round_bytes, SYSTEM.unix(), "measured")
    return ControllerSpec(
        members=tuple(names),
        secret=secret,
        jobs=dict.fromkeys(names, job),
        planning=PlanningSpec(view=view, policy=_policy(args.policy), codec=args.codec, measured_bytes=attached),
        elastic=None if args.quorum is None else Elasticity(quorum=args.quorum),
    )


def _policy(name: str) -> str:
    """Return the policy as it was named, or if a file was named, the file's absolute path."""
    return str(Path(name).resolve()) if is_file(name) else name


def _trainings(args: argparse.Namespace, names: Sequence[str], secret: str) -> Iterator[tuple[ControllerSpec, Path]]:
    """Yield the spec and the directory of each training: `--out`, and for the next ones `2`, `3`, … in it.

    A controller that is started again begins with the newest directory, unless that training is over.
    """
    recorded = (records.parent.name for records in args.out.glob("*/rounds.jsonl"))
    newest = max((int(name) for name in recorded if name.isdecimal()), default=1)
    for number in count(newest):
        out = args.out if number == 1 else args.out / str(number)
        if number == newest and _is_over(out, elastic=args.quorum is not None):
            continue
        out.mkdir(exist_ok=True)
        yield _spec(args, names, secret), out


def _is_over(out: Path, elastic: bool) -> bool:
    """Return whether the training of a directory has ended. Members can go on with an `elastic` training only."""
    final = out / "final.json"
    try:
        if final.exists() and read_json(final)["state"] != "waiting":
            return True
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{final}: not a training's outcome ({error!r}); remove it, or write another --out") from None
    return not elastic and (out / "epochs.json").exists()  # the training began, and its controller was killed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testbed-controller", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", required=True, metavar="A,B", help="the members' names, separated by commas")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where members join")
    # The descriptor of a listening socket, if the program that starts this one has bound the port.
    parser.add_argument("--listening", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--model-bytes", type=int, required=True, metavar="N", help="the bytes that a member contributes to a round"
    )
    secrets_help = "folder of the keys, and of the members' certificates or tokens; made if missing"
    parser.add_argument("--secrets", type=Path, default=Path("secrets"), metavar="DIR", help=secrets_help)
    encryption = parser.add_mutually_exclusive_group()
    encryption.add_argument("--tls", type=Path, metavar="DIR", help="the controller's folder of `testbed certificates`")
    encryption.add_argument("--no-tls", action="store_true", help="encrypt nothing, and identify members by tokens")
    parser.add_argument("--token-file", help=argparse.SUPPRESS)
    parser.add_argument("--policy", default="mst", help="the policy that makes plans: a name, or a file, ./mine.py")
    parser.add_argument("--codec", default="fp32", help="the codec of tensors on their way")
    parser.add_argument(
        "--round-timeout", type=_timeout, default=120.0, metavar="S", help="seconds after which a round has failed"
    )
    streams_help = "connections to each next hop, for paths that lose packets"
    parser.add_argument("--streams", type=int, choices=range(1, 17), default=1, metavar="N", help=streams_help)
    congestion_help = "the members' TCP congestion control, such as bbr; by default the kernel's"
    parser.add_argument("--congestion", default="", metavar="NAME", help=congestion_help)
    parser.add_argument("--quorum", type=int, metavar="N", help="let members leave and join while N are present")
    once_help = "end after the first training: with 0 if it is done, with 1 if it failed"
    parser.add_argument("--once", action="store_true", help=once_help)
    parser.add_argument("--http", type=_port, metavar="PORT", help="the API and its page on 127.0.0.1")
    attached_help = "end when standard input ends or has a line, after the training that is on; remove this folder"
    parser.add_argument("--attached", type=Path, metavar="DIR", help=attached_help)
    parser.add_argument("--out", type=Path, default=Path("run"), metavar="DIR", help="folder of the records")
    return parser


def _certificates(folder: Path, names: Sequence[str]) -> Path:
    """Return the folder of the controller's certificate. Missing certificates are made, and named."""
    if made := [own.name for own in make_certificates(folder, names) if own.name != CONTROLLER]:
        print(f"testbed-controller: new certificates for {', '.join(made)}", file=sys.stderr)
    return folder / CONTROLLER


def _print_keys(encrypted: str, kept: Path, folder: Path, own: str, names: Sequence[str]) -> None:
    copies = "".join(f"\n    {folder / own.format(name)}   to the machine of {name}" for name in names)
    print(f"testbed-controller: {encrypted}. Copy{copies}\nKeep {kept} on this machine alone.", file=sys.stderr)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _secret(folder: Path, shared: str | None) -> str:
    """Return the controller's own secret, made if it is missing.

    In earlier versions one token, in the file `shared`, was valid for all members, so any member could take the name of
    another.

    Raises:
        ValueError: The option of the shared token is given.
        SecretError: Others can read the secret.
    """
    if shared is not None:
        raise ValueError(
            f"--token-file {shared}: one token for all members is no longer accepted, because it does not identify a "
            "member. Write --secrets DIR, copy DIR/NAME.token to the machine of each member, and remove the old file"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own_secret(folder / "controller.key")


def _inherited(descriptor: int | None) -> socket.socket | None:
    try:
        return None if descriptor is None else socket.socket(fileno=descriptor)
    except OSError as error:
        raise ValueError(f"--listening {descriptor}: not a socket of this process: {error.strerror}") from error


def _address(text: str) -> tuple[str, int]:
    if (found := host_and_port(text, least=0)) is None:
        raise ValueError(f"--listen {text}: write HOST:PORT, such as 0.0.0.0:7000; a port is at most 65535")
    return found


def _port(text: str) -> int:
    if (port := port_of(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number from 0 to 65535")
    return port


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_ROUND_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no timeout; write seconds above 0, and at most 10000000")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
