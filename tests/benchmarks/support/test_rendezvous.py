"""The rendezvous reads all members' messages: an unread member blocks when its reports fill the socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.support.rendezvous import Rendezvous
from testbed.plan import Plan, Tree
from testbed.protocol import Hello, Welcome, decode, encode
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = ("m0", "m1", "m2")
PLAN = Plan(0, MEMBERS, (Tree("m0", {"m1": "m0", "m2": "m0"}, {"m1": "m0", "m2": "m0"}, 1.0),), 1 << 20)


def test_no_member_waits_for_its_reports_to_be_read(tmp_path: Path) -> None:
    with Rendezvous(tmp_path, PLAN, streams=1, timeout_s=60.0) as rendezvous:
        members = []
        for number, name in enumerate(MEMBERS):
            member = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            member.settimeout(PATIENCE_S)
            member.connect(rendezvous.address.removeprefix("unix:"))
            member.sendall(encode(Hello(name, ("127.0.0.1", 1000 + number))))
            members.append(member)
        for member in members:
            assert isinstance(decode(member.makefile("rb").readline()), Welcome)
        for member in reversed(members):
            member.sendall(bytes(1 << 22))
        for member in members:
            member.close()
