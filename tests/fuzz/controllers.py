"""A running controller, with members that have joined it, and messages of members, strangers and the owner.

An input is a conversation, a line each:

    2{"kind": ...}              member 2 sends this on its connection
    !2                          member 2 hangs up, and connects again; its next message should be a hello
    ?{"request": ...}           the owner makes a request

The last member sends nothing but its hello: whatever the others do, it stays connected, or the run has failed with a
reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from testbed.controller.model.spec import ControllerSpec, Elasticity
from testbed.controller.owner_server import answer
from testbed.controller.server.member_server import SOCKET
from testbed.controller.service import ControllerService
from testbed.protocol import (
    MAX_LINE_BYTES,
    Arrived,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    MeanSlice,
    PeerSample,
    PromiseGraph,
    Rejoin,
    Renew,
    Report,
    Train,
    encode,
)
from testbed.telemetry.store import finite
from tests.controller.fleet import Member, connect
from tests.controller.gossip.test_coordinator import hop_spec
from tests.controller.runs import running, spec_of
from tests.fuzz.target import Feed, Target
from tests.planning.networks import sites, view_of

#: Small, since the bound of its plans is computed for each input.
VIEW = view_of(sites(("a", "b", 40)), {"a": 3, "b": 2}, knowledge="measured")
NAMES = VIEW.names
SILENT = NAMES[-1]
ADDRESS = ("10.0.0.1", 4000)

REDUCING = spec_of(VIEW, elastic=Elasticity(quorum=2, lease_s=3600.0))
GOSSIPING = hop_spec(VIEW)
#: A conversation takes milliseconds, or seconds where other work keeps the processors busy.
MOST_S = 60
#: The turns of the event loop after which a written line was read and handled.
TURNS = 6


class Unhandled(logging.Handler):
    """Keeps the errors that were logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


@contextmanager
def nothing_unhandled(logger: str) -> Iterator[None]:
    """Raise the first error that is logged with its traceback, which is never intended."""
    unhandled = Unhandled()
    logging.getLogger(logger).addHandler(unhandled)
    try:
        yield
    finally:
        logging.getLogger(logger).removeHandler(unhandled)
    for error in unhandled.errors:
        raise error


class Conversation:
    """A conversation with one controller, whose sockets are in a folder."""

    def __init__(self, controller: ControllerService, sockets: Path) -> None:
        self._controller = controller
        self._sockets = sockets
        self._members: dict[str, Member] = {}

    async def run(self, lines: list[bytes]) -> None:
        """Let all members join, and send the lines."""
        self._members = {name: await connect(self._sockets, name) for name in NAMES}
        for member in self._members.values():
            await member.read()
        for line in lines:
            if line[:1] == b"?":
                said = await answer(self._controller, line[1:])
                assert "failed" not in said, said
            elif line[:1] == b"!":
                await self._connect_again(_name(line[1:]))
            else:
                self._members[_name(line)].writer.write(line[1:] + b"\n")
            for _ in range(TURNS):
                await asyncio.sleep(0)
        json.dumps(finite(self._controller.status()), allow_nan=False)
        there = not self._members[SILENT].reader.at_eof()
        assert there or self._controller.state in ("done", "failed"), f"{SILENT} was hung up on"

    async def end(self) -> None:
        """Hang up all connections, and wait until the controller has noticed."""
        for name, member in self._members.items():
            if name != SILENT:
                await _hang_up(member)
        with suppress(OSError):
            self._members[SILENT].writer.close()

    async def _connect_again(self, name: str) -> None:
        await _hang_up(self._members[name])
        at = self._sockets / name / SOCKET
        reader, writer = await asyncio.open_unix_connection(at, limit=MAX_LINE_BYTES)
        self._members[name] = Member(name, reader, writer)


async def _hang_up(member: Member) -> None:
    with suppress(OSError):
        member.writer.write_eof()
        while await member.reader.read(MAX_LINE_BYTES):
            pass
    member.writer.close()


def _name(line: bytes) -> str:
    """Return the member that speaks; a line without a number is the first member's."""
    return NAMES[(line[0] - ord("0")) % (len(NAMES) - 1) if line else 0]


def open_controller(spec: ControllerSpec) -> Callable[[Path], AbstractContextManager[Feed]]:
    """Return a target's `open`: each input is a conversation with a new controller of this run."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Feed]:
        numbers = count()
        lost: list[BaseException] = []

        async def converse(place: Path, data: bytes) -> None:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: lost.append(context.get("exception") or RuntimeError(context["message"]))
            )
            async with running(spec, place) as controller:
                conversation = Conversation(controller, place / "s")
                try:
                    await conversation.run(data.split(b"\n"))
                finally:
                    await conversation.end()

        def feed(data: bytes) -> None:
            place = folder / str(next(numbers))
            try:
                with nothing_unhandled("testbed.controller"):
                    runner.run(asyncio.wait_for(converse(place, data), MOST_S))
            finally:
                shutil.rmtree(place, ignore_errors=True)
            while lost:
                raise lost.pop()

        with asyncio.Runner() as runner:
            yield feed

    return opened


def lines_of(*said: tuple[int, ControlMessage] | str) -> bytes:
    """Return the lines of a conversation, from (member's number, message) pairs and literal lines."""
    return b"\n".join(
        each.encode() if isinstance(each, str) else b"%d%s" % (each[0], encode(each[1]).strip()) for each in said
    )


def report(number: int, member: int, **more: Any) -> tuple[int, ControlMessage]:
    """Return a member's report of a round in which it sent to the next member."""
    name, peer = NAMES[member], NAMES[(member + 1) % len(NAMES)]
    whole = Report(
        *(name, number, 0, 1e9 + number, 1e9 + number + 1, 0.1, 0.0, 4096, 4096, 0, 0),
        waited={peer: 0.5},
        peers=(PeerSample(peer, 4096, 0.5, 0.04, 2),),
        metrics={"loss": 0.5},
        arrivals={peer: (Train(1e9 + number, 0.01, 65536),)},
    )
    return member, replace(whole, **more)


LINKS = {name: {"rate_bps": 1e7, "delay_s": 0.01, "up": True} for name in sorted(VIEW.links)}
ROUTES = [[a, b, list(links)] for (a, b), links in sorted(VIEW.routes.items())]
HOLDING = Holding(NAMES[1], 1, 1, False, 9, ((0, 4),))
REDUCING_SAYS: Mapping[str, bytes] = {
    "rounds": lines_of(*(report(number, member) for number in range(3) for member in range(4))),
    "slices": lines_of(report(0, 0, slices=(MeanSlice(0, 9, NAMES[:2], 2.0),)), (0, Arrived(NAMES[0], {}))),
    "held": lines_of((0, Held(NAMES[0], 1)), (1, Held(NAMES[1], 1, "no room")), (2, Renew(NAMES[2]))),
    "lost": lines_of(
        (0, Lost(NAMES[0], NAMES[3], "broken", 0)),
        (1, HOLDING),
        *((member, replace(HOLDING, member=NAMES[member])) for member in (0, 2)),
    ),
    "goodbye": lines_of((0, Goodbye(NAMES[0], 3, "d1635")), (1, Goodbye.with_error(NAMES[1], 3, "no more")), "!1"),
    "comes": lines_of("!0", (0, Hello(NAMES[0], ADDRESS)), (1, Held(NAMES[1], 1))),
    "returns": lines_of("!0", (0, Hello(NAMES[0], ADDRESS, returns=True)), (0, Rejoin(NAMES[0], {}, {}, 1, False, 1))),
    "owner": lines_of(
        '?{"request":"ReadStatus"}', '?{"request":"ReadRounds","since":0}',
        '?{"request":"ForcePolicy","policy":"star","options":{"root":"a-w0"}}', '?{"request":"ForcePlan","plan":{}}',
        "?" + json.dumps({"request": "ChangeNetwork", "links": LINKS, "routes": ROUTES}),
        '?{"request":"Stop","reason":"enough"}',
    ),
}  # fmt: skip
GOSSIP_SAYS: Mapping[str, bytes] = {
    "iterations": lines_of(*(report(number, member) for number in range(3) for member in range(4))),
    "graph": lines_of('?{"request":"ChangeGraph","kind":"ring"}', *((i, PromiseGraph(NAMES[i], 4)) for i in range(4))),
    "comes": lines_of("!0", (0, Hello(NAMES[0], ADDRESS)), (1, PromiseGraph(NAMES[1], 9))),
    "goodbye": lines_of((0, Goodbye(NAMES[0], 120, "d1635")), (1, Goodbye.with_error(NAMES[1], 3, "no more"))),
}

TARGETS = (
    Target("controller", open_controller(REDUCING), REDUCING_SAYS),
    Target("gossip-controller", open_controller(GOSSIPING), GOSSIP_SAYS),
)
