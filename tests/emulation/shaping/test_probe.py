"""A backend counts as working when it can shape what a run will ask it to, a worker's port included."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from testbed.emulation.host.kernel import KernelPackage
from testbed.emulation.shaping import available_backends, probe
from tests.emulation.recorder import Recorder

ROOT = Path(__file__).parents[3]

#: Without its settings the module is not loaded, as far as anyone can see.
HIDE = "mount -t tmpfs tmpfs /proc/sys/net"
SHOW = "umount /proc/sys/net"

PROBE = """
import json
from testbed.emulation.shaping import available_backends
print(json.dumps(available_backends()["userspace"]))
"""


def complaint_without_module(folder: Path, modprobe: str) -> str | None:
    """Return the complaint about the userspace backend without br_netfilter, where `modprobe` is modprobe's part.

    The program has a network namespace of its own, whose bridges it may change.
    """
    program = folder / "modprobe"
    program.write_text(f'#!/bin/sh\n[ "$*" = "--all br_netfilter" ] && {modprobe}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", f'{HIDE} && exec "$0" -c "$1"', sys.executable, PROBE],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    complaint: str | None = json.loads(done.stdout)
    return complaint


@pytest.mark.system
def test_the_userspace_backend_works_here() -> None:
    assert available_backends()["userspace"] is None


@pytest.mark.system
def test_what_a_workers_port_needs_is_loaded(tmp_path: Path) -> None:
    assert complaint_without_module(tmp_path, f"{SHOW} && touch {tmp_path}/loaded") is None
    assert (tmp_path / "loaded").exists()


@pytest.mark.system
def test_what_cannot_be_loaded_is_found_out_beforehand_and_named(tmp_path: Path) -> None:
    refusal = "{ echo 'modprobe: FATAL: Module br_netfilter not found.' >&2; exit 1; }"
    complaint = complaint_without_module(tmp_path, refusal)
    assert complaint is not None
    assert "modprobe br_netfilter" in complaint
    assert "CONFIG_BRIDGE_NETFILTER" in complaint
    assert "FATAL: Module br_netfilter not found" in complaint


@pytest.mark.pure
@pytest.mark.parametrize(
    ("package", "remedy"),
    [(None, "CONFIG_NET_SCH_TBF"), (KernelPackage("linux-modules-extra-6.1"), "modprobe -a sch_tbf")],
)
def test_a_kernel_that_limits_no_workers_interface_is_found_out_beforehand(
    package: KernelPackage | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    netlink = MagicMock()
    netlink.apply.side_effect = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(probe, "Namespace", MagicMock())
    monkeypatch.setattr(probe, "_make_site", lambda _: None)
    monkeypatch.setattr(probe, "Netlink", lambda _: netlink)
    monkeypatch.setattr(probe, "limit_rate", lambda *_: "the rate limit")
    monkeypatch.setattr(probe, "package_here", lambda: package)
    complaint = probe._complaint(Recorder)
    netlink.apply.assert_called_once_with("the rate limit")
    assert complaint is not None and remedy in complaint and "sch_netem" not in complaint


@pytest.mark.pure
def test_netem_asks_for_its_modules_or_the_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Recorder):
        def attach(self, ports: object) -> None:
            raise probe.ShapingError("refused")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("Namespace", "Netlink", "_make_site", "limit_rate"):
        monkeypatch.setattr(probe, name, MagicMock())
    monkeypatch.setattr(probe, "NetemShaper", Refused)
    monkeypatch.setattr(probe, "package_here", lambda: None)
    complaint = probe._complaint(Refused)
    assert complaint is not None
    assert "CONFIG_NET_SCH_NETEM and CONFIG_NET_SCH_HTB" in complaint and "userspace" in complaint
