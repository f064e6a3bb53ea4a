"""The rules that send a router's packets to the shaping core.

nftables has a queue statement only where the kernel was built with it, so these are iptables rules, through
whichever of its two forms this kernel accepts. All live in one chain of our own, which is replaced whole and
atomically:

    mangle POSTROUTING ─► testbed-shaping ─► -o paris-tokyo            -j NFQUEUE --queue-num 0
                                          ─► -o lan -d 10.0.0.2        -j NFQUEUE --queue-num 1

None carries --queue-bypass: while nobody listens to a queue, its packets are dropped. An accepted packet goes
on after the whole table, so it meets one rule only; rules with a destination therefore come before those
without.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.emulation.shaping.base import ShapingError

CHAIN = "testbed-shaping"
JUMP = ("POSTROUTING", "-j", CHAIN)
FORMS = ("iptables-nft", "iptables-legacy", "iptables")


@dataclass(frozen=True, slots=True)
class Rule:
    """What leaves through an interface, perhaps for one address only, goes to a queue."""

    interface: str
    destination: str | None
    queue: int

    def __str__(self) -> str:
        narrowed = f" -d {self.destination}" if self.destination else ""
        return f"-A {CHAIN} -o {self.interface}{narrowed} -j NFQUEUE --queue-num {self.queue}"


def _run(command: list[str], text: str | None = None) -> str | None:
    """Run a command; None when it succeeded, else what it complained about."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return None if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def table_text(rules: Iterable[Rule], *, jump: bool = False) -> str:
    """Input of iptables-restore that makes these the chain's only rules; with the jump to it, where that is missing."""
    ordered = sorted(rules, key=lambda rule: rule.destination is None)
    way_in = [f"-A {' '.join(JUMP)}"] if jump else []
    return "\n".join(["*mangle", f":{CHAIN} - [0:0]", *map(str, ordered), *way_in, "COMMIT", ""])


@cache
def working_form() -> str:
    """The form of iptables with which a queue rule can really be added here, tried in a scratch namespace."""
    complaints = []
    for form in FORMS:
        text = table_text([Rule("lo", "127.0.0.1", 0)])
        complaint = _run(["unshare", "--net", f"{form}-restore", "--noflush"], text)
        if complaint is None:
            return form
        complaints.append(f"{form}: {complaint.splitlines()[0]}")
    raise ShapingError(
        "no NFQUEUE rule can be added here. Install the tool (apt-get install iptables), and use a kernel "
        "with CONFIG_NETFILTER_XT_TARGET_NFQUEUE and CONFIG_NETFILTER_NETLINK_QUEUE (modules xt_NFQUEUE and "
        f"nfnetlink_queue). What was tried: {'; '.join(complaints)}"
    )


def filter_bridged(netns: Path) -> None:
    """Have what one port of a bridge sends to another pass the rules too, which its frames otherwise go
    round. Loads the kernel's module for that where it is not there yet. Raises ShapingError.
    """
    switch = ["nsenter", f"--net={netns}", "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"]
    if _run(switch) is None:
        return
    loading = _run(["modprobe", "br_netfilter"])
    complaint = _run(switch)
    if complaint is not None:
        tried = f"{complaint}; modprobe br_netfilter: {loading or 'done'}"
        raise ShapingError(
            "what passes a bridge cannot be shaped here. Load the module br_netfilter (modprobe br_netfilter), or use "
            f"a kernel with CONFIG_BRIDGE_NETFILTER. What was tried: {tried}"
        )


def replace_rules(netns: Path, rules: Iterable[Rule], *, first: bool) -> None:
    """Make these rules the only ones of our chain in a namespace. Raises ShapingError; then nothing has
    changed. The `first` time, the jump to the chain is added unless it is there.
    """
    form, there = working_form(), ["nsenter", f"--net={netns}"]
    missing = first and _run([*there, form, "-t", "mangle", "-C", *JUMP]) is not None
    complaint = _run([*there, f"{form}-restore", "--noflush"], table_text(rules, jump=missing))
    if complaint is not None:
        raise ShapingError(f"cannot set queue rules in {netns}: {complaint}")
