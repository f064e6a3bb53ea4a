"""Members over TLS: the same rounds, nobody under another member's name, and nothing readable on the path."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.certificates import make_certificates
from testbed.plan import Plan
from testbed.sockets import Tls
from testbed.sync.errors import ImpostorError
from testbed.sync.transport import handshake, sockets
from testbed.sync.transport.frame import Frame, Greeting
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Listener
from testbed.sync.transport.sender import Sender
from tests.sync.controller import Controller, job
from tests.sync.keys import keys
from tests.sync.plans import names, random_plan, random_routes, star
from tests.sync.proxy import Proxy
from tests.sync.sessions import run_with
from tests.sync.test_session import check_exact, reducing
from tests.sync.transport.test_listener import WIRE, Inward
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

MEMBERS = ("a", "b", "mallory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    assert [*make_certificates(made, (*MEMBERS, *names(5)))]
    return made


def settings_of(member: str, folder: Path, shows: str = "") -> TransportSettings:
    """Return a member's settings, with its own certificate or that of another member."""
    return TransportSettings(member, keys(member, MEMBERS), 10.0, tls=Tls(folder / (shows or member)))


@pytest.mark.parametrize("elements", [1, 20_011])
def test_rounds_are_exact_whatever_way_they_go(tmp_path: Path, folder: Path, elements: int) -> None:
    members, draw = names(5), random.Random(1)
    plan = replace(random_plan(draw, members, 0, 4096), auxiliary=random_routes(draw, members))
    weights = dict.fromkeys(members, 1.0)
    with Controller(tmp_path, plan, job(streams=2)) as controller:
        results = run_with(controller, reducing(4, elements, weights), certificates=folder)
    check_exact(results, 4, elements, weights)
    assert {(r.lost, r.duplicated) for r in controller.reports()} == {(0, 0)}


def test_what_paths_carry_is_measured(tmp_path: Path, folder: Path) -> None:
    """The times are those of reading, because records hide the arrival of their packets."""
    members = names(3)
    plan = Plan(0, members, (star(members, "m1"),), 64 * 1024)
    with Controller(tmp_path, plan, job()) as controller:
        run_with(controller, reducing(4, 1_000_000, dict.fromkeys(members, 1.0)), certificates=folder)
    trains = [train for report in controller.reports() for found in report.arrivals.values() for train in found]
    assert trains and all(train.bytes > 0 and train.seconds > 0 for train in trains)
    assert any(sample.bytes > 1_000_000 for report in controller.reports() for sample in report.peers)


@pytest.mark.parametrize("secured", [True, False])
def test_nothing_is_to_be_read_on_the_way(folder: Path, secured: bool) -> None:
    plain = {name: TransportSettings(name, keys(name, MEMBERS), 10.0) for name in "ab"}
    own = {name: settings_of(name, folder) for name in "ab"} if secured else plain
    inward, secret = Inward(), bytearray(b"what nobody else is to know" * 30)
    accepting = sockets.listen("127.0.0.1", 5)
    with closing(Listener(accepting, own["b"], inward)), Proxy(accepting.getsockname, 1) as proxy:
        sending = Sender("b", proxy.address, own["a"], WIRE, lambda *what: pytest.fail(str(what)))
        sending.queue.put((1,), Frame(b"x", len(secret)), memoryview(secret))
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", secret)
        sending.finish()
        sending.join(PATIENCE_S)
        assert inward.ended.get(timeout=PATIENCE_S) == ("a", "")
    assert len(proxy.passed) > len(secret)
    assert (secret[:20] in proxy.passed) is not secured


Address = tuple[str, int]


@pytest.fixture
def address(folder: Path) -> Iterator[tuple[Address, Listener]]:
    accepting = sockets.listen("127.0.0.1", 5)
    with closing(Listener(accepting, settings_of("b", folder), Inward())) as listener:
        yield accepting.getsockname(), listener


def met(address: Address, greeting: Greeting, peer: str, settings: TransportSettings) -> None:
    connection = socket.create_connection(address, PATIENCE_S)
    handshake.greet(connection, greeting, peer, settings, time.monotonic() + PATIENCE_S).close()


def test_keys_alone_let_nobody_in_as_another(address: tuple[Address, Listener], folder: Path) -> None:
    """mallory has stolen all keys of a, and has its own certificate."""
    where, listener = address
    with pytest.raises(OSError):
        met(where, Greeting("a"), "b", settings_of("a", folder, shows="mallory"))
    until(lambda: listener.refused == 1)
    met(where, Greeting("a"), "b", settings_of("a", folder))


def test_nobody_is_taken_for_another(address: tuple[Address, Listener], folder: Path) -> None:
    """mallory gave b's address as its own."""
    where, _ = address
    with pytest.raises(ImpostorError) as caught:
        met(where, Greeting("a"), "mallory", settings_of("a", folder))
    assert (caught.value.rule, caught.value.member) == ("certificate", "mallory")


def test_another_authority_s_are_strangers(address: tuple[Address, Listener], folder: Path, tmp_path: Path) -> None:
    where, listener = address
    assert [*make_certificates(tmp_path, MEMBERS)]
    with pytest.raises(ImpostorError) as caught:
        met(where, Greeting("a"), "b", settings_of("a", tmp_path))
    assert (caught.value.rule, caught.value.member) == ("certificate", "b")
    until(lambda: listener.refused == 1)


def test_a_connection_without_tls_is_refused(address: tuple[Address, Listener]) -> None:
    where, listener = address
    with pytest.raises(OSError):
        met(where, Greeting("a"), "b", TransportSettings("a", keys("a", MEMBERS), 5.0))
    until(lambda: listener.refused == 1)
