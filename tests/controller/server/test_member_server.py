"""Members, and programs that pretend to be one, that send wrong messages: each is excluded by name, and no other."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from testbed.controller.model.spec import Elasticity
from testbed.controller.owner_server import answer
from testbed.controller.server import connection
from testbed.controller.server.member_server import SOCKET, TcpEndpoint
from testbed.controller.service import ControllerService
from testbed.protocol import (
    MAX_LINE_BYTES,
    ControlMessage,
    Goodbye,
    Hello,
    Prepare,
    Rejoin,
    Renew,
    Report,
    Stop,
    Welcome,
    encode,
)
from tests.controller.fleet import TURNS, Fleet, Member, connect
from tests.controller.runs import group_of, mesh, running, spec_of, training
from tests.waiting import PATIENCE_S, happens

pytestmark = pytest.mark.local

VIEW = mesh()
BAD, *OTHERS = VIEW.names
ELASTIC = spec_of(VIEW, elastic=Elasticity(quorum=3, lease_s=30.0), period_s=3600.0)


def report(member: str, number: int, **fields: Any) -> bytes:
    """A report's line with fields that may be anything, as JSON has them."""
    whole = json.loads(encode(Report(member, number, 0, 1.0, 2.0, 0.1, 0.0, 10, 10, 0, 0, metrics={"loss": 1.0})))
    values = {**{name: json.dumps(value) for name, value in whole.items()}, **fields}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + "}\n").encode()


async def status_of(controller: ControllerService) -> dict[str, Any]:
    """Return what the owner is answered."""
    return await answer(controller, b'{"request": "ReadStatus"}')


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metrics", '{"loss": "x"}'),
        ("metrics", "[]"),
        ("slices", "[{}]"),
        ("peers", '["x"]'),
        ("arrivals", '{"b-w0": [[1e999, 1, 1]]}'),
        ("waited", "[" * 100_000),
        ("waited", '{"nobody": 1.0}'),
        ("epoch", "7"),
    ],
)
async def test_a_report_that_cannot_be_ends_its_member_and_nothing_else(tmp_path: Path, field: str, value: str) -> None:
    async with training(ELASTIC, tmp_path, VIEW) as (controller, fleet):
        for name in VIEW.names:
            fleet.members[name].writer.write(report(name, 1, **({field: value} if name == BAD else {})))
        await happens(lambda: not controller.server.connected(BAD))
        [event] = controller.coordinator.events
        assert (event.kind, event.member) == ("left", BAD) and ("report" in event.why or "epoch" in event.why)
        assert (await status_of(controller))["answer"]["state"] == "running"
        assert all(controller.server.connected(name) for name in OTHERS)
        for name in OTHERS:
            fleet.members[name].send(Goodbye(name, 1))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.state == "done" and controller.coordinator.goodbyes.keys() == set(OTHERS)


@pytest.mark.parametrize(("field", "value"), [("metrics", '{"loss": "x"}'), ("metrics", "[]"), ("slices", "[{}]")])
async def test_where_members_may_not_go_the_run_ends_with_the_name_and_the_reason(
    tmp_path: Path, field: str, value: str
) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        for name in (BAD, *OTHERS):
            fleet.members[name].writer.write(report(name, 1, **({field: value} if name == BAD else {})))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.failure.startswith(f"{BAD}: report: ") and f"$.{field}" in controller.failure
        assert (await status_of(controller))["answer"]["failure"] == controller.failure


async def test_what_the_controller_itself_gets_wrong_is_blamed_on_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        monkeypatch.setattr(group_of(controller).rounds, "add", Mock(side_effect=KeyError("a mistake of ours")))
        fleet.members[BAD].writer.write(report(BAD, 1))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert f"{BAD}: KeyError('a mistake of ours')" in controller.failure


async def silent(sockets: Path) -> Member:
    """Connected, and says nothing."""
    reader, writer = await asyncio.open_unix_connection(sockets / BAD / SOCKET, limit=MAX_LINE_BYTES)
    return Member("nobody", reader, writer)


async def last_words(member: Member) -> str:
    """Why it was hung up on."""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            message = await member.read()
            if message is not None:
                assert isinstance(message, Stop) and await member.reader.read() == b""
                return message.reason
    return ""


async def test_a_connection_without_a_hello_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.controller.server.member_server.HELLO_S", 0.05)
    async with running(spec_of(VIEW), tmp_path):
        assert "nothing came within" in await last_words(await silent(tmp_path / "s"))


async def test_silent_connections_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_UNAUTHENTICATED", 4)
    async with running(spec_of(VIEW), tmp_path) as controller:
        idle = [await silent(tmp_path / "s") for _ in range(6)]
        for one in idle[:2]:  # the oldest go
            assert await last_words(one) == ""
        fleet = Fleet(tmp_path / "s", VIEW)
        await fleet.join()
        assert controller.state == "running"
        await fleet.hang_up()
        for one in idle:
            one.writer.close()


async def test_a_line_that_is_longer_than_a_hello_is_not_read_before_the_token(tmp_path: Path) -> None:
    async with running(spec_of(VIEW), tmp_path):
        stranger = await silent(tmp_path / "s")
        stranger.writer.write(b'{"kind":"hello","member":"' + b"x" * 2 * connection.HELLO_BYTES)
        assert str(connection.HELLO_BYTES) in await last_words(stranger)


async def test_a_member_that_returns_without_its_position_is_told_so(tmp_path: Path) -> None:
    async with running(ELASTIC, tmp_path):
        member = await silent(tmp_path / "s")
        member.send(Hello(BAD, ("10.0.0.1", 4000), token="secret", returns=True))
        member.send(Goodbye(BAD, 1))
        assert repr(BAD) in await last_words(member)


@pytest.mark.parametrize("host", ["a..b", "ä..b", "a" * 70, "a\0b"])
async def test_a_member_at_an_address_that_no_host_can_have_is_refused(tmp_path: Path, host: str) -> None:
    async with running(spec_of(VIEW), tmp_path) as controller:
        member = await silent(tmp_path / "s")
        member.send(Hello(BAD, (host, 4000)))
        assert repr(host) in await last_words(member)
        assert not controller.server.connected(BAD)


async def test_a_member_that_does_not_read_is_cut_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_UNREAD_BYTES", 2**20)
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        fleet.members[BAD].writer.transport.pause_reading()
        for _ in range(100):
            controller.server.send_all(Prepare({"filler": "x" * 2**16}))
            await asyncio.sleep(0)
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.failure.startswith(f"{BAD}: ")


async def test_drain_waits_for_few_bytes_too() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    _, member = await asyncio.open_connection(sock=theirs, limit=MAX_LINE_BYTES)
    member.transport.pause_reading()
    line = connection.Connection(reader, writer)
    while not writer.transport.get_write_buffer_size():
        line.send(Prepare({"filler": "x" * 2**12}))
    drained = asyncio.create_task(line.drain())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not drained.done()
    member.transport.resume_reading()
    await asyncio.wait_for(drained, PATIENCE_S)
    assert writer.transport.get_write_buffer_size() == 0
    writer.close()
    member.close()


async def test_a_member_that_joins_again_replaces_its_connection(tmp_path: Path) -> None:
    async with running(ELASTIC, tmp_path) as controller:
        first = await connect(tmp_path / "s", BAD)
        await happens(lambda: controller.server.connected(BAD))
        second = await connect(tmp_path / "s", BAD)
        assert await last_words(first) == ""
        assert controller.server.connected(BAD) and controller.state == "waiting"
        second.writer.close()


async def test_messages_of_a_member_s_process_count_no_more_after_the_hello_of_its_next_one(tmp_path: Path) -> None:
    async with training(ELASTIC, tmp_path, VIEW) as (controller, fleet):
        ours, theirs = socket.socketpair()
        again = connection.Connection(*await asyncio.open_connection(sock=ours))
        received, heard = controller.received, list[ControlMessage]()

        def restart(message: ControlMessage) -> None:
            heard.append(message)
            if isinstance(message, Renew):
                controller.server._join(Hello(BAD, ("10.0.0.1", 4000)), None, again)
            received(message)

        controller.received = restart  # type: ignore[method-assign]
        member, listening = fleet.members[BAD], fleet._listening[0]
        member.writer.write(encode(Renew(BAD)) + encode(Goodbye.with_error(BAD, 1, "out of memory")))
        await happens(listening.done)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert controller.server.connected(BAD)
        theirs.close()
    assert heard == [Renew(BAD)]


async def test_a_member_of_the_next_training_waits_for_it(tmp_path: Path) -> None:
    """Also while the training before goes on, which only that member has left."""
    spec, sockets = spec_of(VIEW), tmp_path / "s"
    first = ControllerService(spec, sockets, tmp_path / "1", takes_next=True)
    await first.start()
    fleet = Fleet(sockets, VIEW)
    await fleet.join()
    twice = await connect(sockets, OTHERS[0])
    assert isinstance(refusal := await twice.read(), Stop) and "already" in refusal.reason
    fleet.members[BAD].send(Goodbye(BAD, 0))
    await happens(lambda: not first.server.connected(BAD))
    early = [await connect(sockets, BAD)]
    await happens(lambda: BAD in first.server.early)
    assert first.state == "running"
    for name in OTHERS:
        fleet.members[name].send(Goodbye(name, 0))
    await asyncio.wait_for(first.finished.wait(), PATIENCE_S)
    early.append(await connect(sockets, OTHERS[0]))
    await first.close(keep_server=True)
    await fleet.hang_up()
    second = ControllerService(spec, sockets, tmp_path / "2", takes_next=True, before=first)
    await second.start()
    try:
        await happens(lambda: second.hellos.keys() == {BAD, OTHERS[0]})
        stream = await asyncio.open_unix_connection(sockets / OTHERS[1] / SOCKET)
        returning = Member(OTHERS[1], *stream)
        returning.send(Hello(OTHERS[1], ("10.0.0.1", 4000), returns=True))
        returning.send(Rejoin(OTHERS[1], {}, {}, 1, False, 0))
        assert isinstance(refusal := await returning.read(), Stop) and "over" in refusal.reason
        early += [await connect(sockets, name) for name in OTHERS[1:]]
        assert all([isinstance(await member.read(), Welcome) for member in early])
        assert (first.state, second.state) == ("done", "running")
    finally:
        await second.close()
        for member in early:
            member.writer.close()


async def test_a_training_is_forgotten_once_the_next_one_has_begun(tmp_path: Path) -> None:
    spec, sockets = spec_of(VIEW), tmp_path / "s"
    first = ControllerService(spec, sockets, tmp_path / "1", takes_next=True)
    await first.start()
    await first.close(keep_server=True)
    second = ControllerService(spec, sockets, tmp_path / "2", takes_next=True, before=first)
    await second.start()
    before = weakref.ref(first)
    del first
    gc.collect()
    forgotten = before() is None
    await second.close()
    assert forgotten


async def test_a_member_that_has_gone_while_it_waited_for_the_next_training_is_not_in_it(tmp_path: Path) -> None:
    spec, sockets = spec_of(VIEW), tmp_path / "s"
    first = ControllerService(spec, sockets, tmp_path / "1", takes_next=True)
    await first.start()
    await first.close(keep_server=True)
    gone = await connect(sockets, BAD)
    await happens(lambda: BAD in first.server.early)
    gone.writer.close()
    assert first.server._early is not None
    await happens(lambda: first.server._early[BAD].connection.has_ended)
    second = ControllerService(spec, sockets, tmp_path / "2", takes_next=True, before=first)
    await second.start()
    members = [await connect(sockets, name) for name in VIEW.names]
    try:
        await happens(lambda: second.state != "waiting")
        assert second.state == "running"
    finally:
        await second.close()
        for member in members:
            member.writer.close()


async def test_the_end_of_a_member_s_machine_is_noticed(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    tcp = TcpEndpoint("127.0.0.1", address[1], listening=listening)
    controller = ControllerService(spec_of(VIEW), tmp_path / "s", tmp_path / "out", tcp)
    await controller.start()
    _, writer = await asyncio.open_connection(*address)
    try:
        connections = controller.server._unauthenticated._waiting
        await happens(lambda: bool(connections))
        accepted = next(iter(connections))._writer.get_extra_info("socket")
        probes = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert [accepted.getsockopt(socket.IPPROTO_TCP, option) for option in probes] == [60, 15, 4, 120_000]
    finally:
        writer.close()
        await controller.close()


def test_connections_that_come_in_one_turn_each_cut_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_UNAUTHENTICATED", 2)
    waiting, made = connection.UnauthenticatedConnections(), [Mock() for _ in range(5)]
    with ExitStack() as counted:
        for one in made:
            counted.enter_context(waiting.counted(one))
        assert [one.cut.called for one in made] == [True, True, True, False, False]
