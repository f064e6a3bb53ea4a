"""A backend counts as working when it can shape what a run will ask it to, a worker's port included."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from testbed.emulation.shaping import available_backends

pytestmark = pytest.mark.privileged

#: In the place of sysctl: knows the switch once the module is loaded.
SYSCTL = """#!/bin/sh
[ -e {folder}/loaded ] && exec {sysctl} "$@"
echo "sysctl: cannot stat /proc/sys/net/bridge/bridge-nf-call-iptables: No such file or directory" >&2
exit 255
"""
#: In the place of modprobe.
MODPROBE = """#!/bin/sh
[ "$*" = br_netfilter ] && {does}
"""


@pytest.fixture
def without_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel without br_netfilter, as far as the programs that would say so tell."""
    program(tmp_path / "sysctl", SYSCTL.format(folder=tmp_path, sysctl=shutil.which("sysctl")))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_userspace_backend_works_here() -> None:
    assert available_backends()["userspace"] is None


def test_what_a_workers_port_needs_is_loaded(without_module: Path) -> None:
    program(without_module / "modprobe", MODPROBE.format(does=f"touch {without_module}/loaded"))
    assert available_backends()["userspace"] is None
    assert (without_module / "loaded").exists()


def test_what_cannot_be_loaded_is_found_out_beforehand_and_named(without_module: Path) -> None:
    refusal = "{ echo 'modprobe: FATAL: Module br_netfilter not found.' >&2; exit 1; }"
    program(without_module / "modprobe", MODPROBE.format(does=refusal))
    complaint = available_backends()["userspace"]
    assert complaint is not None
    assert "modprobe br_netfilter" in complaint
    assert "CONFIG_BRIDGE_NETFILTER" in complaint
    assert "FATAL: Module br_netfilter not found" in complaint
