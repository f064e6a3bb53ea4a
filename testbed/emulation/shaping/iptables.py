"""The iptables rules that send a router's packets to the shaping core.

nftables has a queue statement only if the kernel was built with it, so these are iptables rules, set through whichever
of its two forms this kernel accepts. All rules are in one chain of our own, which is replaced as a whole and
atomically:

    mangle POSTROUTING ─► testbed-shaping ─► -o paris-tokyo            -j NFQUEUE --queue-num 0
                                          ─► -o lan -d 10.0.0.2        -j NFQUEUE --queue-num 1

No rule has --queue-bypass: while no program listens to a queue, its packets are dropped. An accepted packet skips the
rest of the table, so it meets one rule only; therefore rules with a destination come first.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.emulation.host import kernel
from testbed.emulation.network.namespace import inside
from testbed.emulation.shaping.base import ShapingError

CHAIN = "testbed-shaping"
JUMP = ("POSTROUTING", "-j", CHAIN)
BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
FORMS = ("iptables-nft", "iptables-legacy", "iptables")
#: The legacy form has one lock for all namespaces, and fails at once while another call holds it. The other form
#: accepts the option and ignores it.
WAIT = "--wait"


@dataclass(frozen=True, slots=True)
class Rule:
    """Sends packets that leave through an interface to a queue; without a queue, drops them.

    With a destination, it applies to packets for that address only.
    """

    interface: str
    destination: str | None
    queue: int | None

    def __str__(self) -> str:
        narrowed = f" -d {self.destination}" if self.destination else ""
        target = "DROP" if self.queue is None else f"NFQUEUE --queue-num {self.queue}"
        return f"-A {CHAIN} -o {self.interface}{narrowed} -j {target}"


def _run(command: list[str], text: str | None = None) -> str | None:
    """Run a command; return None if it succeeded, or its error."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return None if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def table_text(rules: Iterable[Rule], *, jump: bool = False) -> str:
    """Return input for iptables-restore that makes these the chain's only rules. `jump` adds the jump to the chain."""
    ordered = sorted(rules, key=lambda rule: rule.destination is None)
    way_in = [f"-A {' '.join(JUMP)}"] if jump else []
    return "\n".join(["*mangle", f":{CHAIN} - [0:0]", *map(str, ordered), *way_in, "COMMIT", ""])


@cache
def working_form() -> str:
    """Return the form of iptables that can add a queue rule here, tried in a scratch namespace."""
    complaints = []
    for form in FORMS:
        text = table_text([Rule("lo", "127.0.0.1", 0)])
        complaint = _run(["unshare", "--net", f"{form}-restore", WAIT, "--noflush"], text)
        if complaint is None:
            return form
        complaints.append(f"{form}: {complaint.splitlines()[0]}")
    raise ShapingError(
        "no NFQUEUE rule can be added on this machine. Install iptables (apt-get install iptables), and use a kernel "
        "with CONFIG_NETFILTER_XT_TARGET_NFQUEUE and CONFIG_NETFILTER_NETLINK_QUEUE (modules xt_NFQUEUE and "
        f"nfnetlink_queue). Tried: {'; '.join(complaints)}"
    )


def filter_bridged(namespaces: Iterable[Path]) -> None:
    """Make frames between two ports of a bridge pass the rules too, which they otherwise bypass.

    Loads the kernel's module for that if it is missing. Raises ShapingError.
    """
    for netns in namespaces:
        if _switch_on(netns) is None:
            continue
        loading = kernel.load(["br_netfilter"])
        complaint = _switch_on(netns)
        if complaint is not None:
            tried = f"{complaint}; modprobe br_netfilter: {loading or 'done'}"
            raise ShapingError(
                "bridged packets cannot be shaped on this machine. Load the module br_netfilter (modprobe "
                f"br_netfilter), or use a kernel with CONFIG_BRIDGE_NETFILTER. Tried: {tried}"
            )


def _switch_on(netns: Path) -> str | None:
    """Make bridged frames pass the rules of a namespace; return None, or the error."""
    try:
        inside(netns, lambda: BRIDGED.write_text("1"))
    except OSError as error:
        return str(error)
    return None


def replace_rules(rules: Mapping[Path, Collection[Rule]]) -> None:
    """Make these rules the only ones of our chain in each namespace, several namespaces at a time.

    Raises:
        ShapingError: The rules of a namespace could not be set.
    """
    working_form()  # cached here, so that not every thread tries it out
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for netns, complaint in zip(rules, pool.map(_replace, rules, rules.values()), strict=True):
            if complaint is not None:
                raise ShapingError(f"NFQUEUE rules could not be set in {netns}: {complaint}")


def _replace(netns: Path, rules: Collection[Rule]) -> str | None:
    """Set the rules and the jump to them; return None, or the error, after which nothing has changed.

    The tools run in the namespace, because the thread that starts them is in it.
    """
    form = working_form()

    def replace() -> str | None:
        missing = _run([form, WAIT, "-t", "mangle", "-C", *JUMP]) is not None
        return _run([f"{form}-restore", WAIT, "--noflush"], table_text(rules, jump=missing))

    try:
        return inside(netns, replace)
    except OSError as error:
        return str(error)
