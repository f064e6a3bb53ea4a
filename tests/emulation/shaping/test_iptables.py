"""The text of the rules, and the commands that set them."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.emulation.shaping import iptables
from testbed.emulation.shaping.iptables import Rule, table_text

pytestmark = pytest.mark.pure


def test_the_chain_is_replaced_whole_and_narrow_rules_come_first() -> None:
    rules = [Rule("lan", None, 0), Rule("lan", "10.0.0.2", 1), Rule("tokyo", None, 2)]
    assert table_text(rules).splitlines() == [
        "*mangle",
        ":testbed-shaping - [0:0]",
        "-A testbed-shaping -o lan -d 10.0.0.2 -j NFQUEUE --queue-num 1",
        "-A testbed-shaping -o lan -j NFQUEUE --queue-num 0",
        "-A testbed-shaping -o tokyo -j NFQUEUE --queue-num 2",
        "COMMIT",
    ]


def test_a_port_without_a_queue_is_dead() -> None:
    assert str(Rule("lan", "10.0.0.2", None)) == "-A testbed-shaping -o lan -d 10.0.0.2 -j DROP"


def test_no_rule_lets_packets_past_a_dead_core() -> None:
    assert "bypass" not in table_text([Rule("tokyo", None, 0)])


def test_every_command_waits_for_the_lock_that_all_namespaces_share(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(iptables, "_run", lambda command, *_: commands.append(command))
    monkeypatch.setattr(iptables, "inside", lambda _, act: act())
    monkeypatch.setattr(iptables, "working_form", iptables.working_form.__wrapped__)
    assert iptables._replace(Path("/proc/self/ns/net"), [Rule("tokyo", None, 0)]) is None
    assert len(commands) == 3
    assert all("--wait" in command for command in commands)
