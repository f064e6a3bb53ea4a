"""A backend counts as working when it can shape what a run will ask it to, a worker's port included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.emulation.shaping import available_backends

pytestmark = pytest.mark.system

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
    """Return the complaint about the userspace backend without br_netfilter, where `modprobe` is modprobe's part."""
    program = folder / "modprobe"
    program.write_text(f'#!/bin/sh\n[ "$*" = br_netfilter ] && {modprobe}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{HIDE} && exec "$0" -c "$1"', sys.executable, PROBE],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    complaint: str | None = json.loads(done.stdout)
    return complaint


def test_the_userspace_backend_works_here() -> None:
    assert available_backends()["userspace"] is None


def test_what_a_workers_port_needs_is_loaded(tmp_path: Path) -> None:
    assert complaint_without_module(tmp_path, f"{SHOW} && touch {tmp_path}/loaded") is None
    assert (tmp_path / "loaded").exists()


def test_what_cannot_be_loaded_is_found_out_beforehand_and_named(tmp_path: Path) -> None:
    refusal = "{ echo 'modprobe: FATAL: Module br_netfilter not found.' >&2; exit 1; }"
    complaint = complaint_without_module(tmp_path, refusal)
    assert complaint is not None
    assert "modprobe br_netfilter" in complaint
    assert "CONFIG_BRIDGE_NETFILTER" in complaint
    assert "FATAL: Module br_netfilter not found" in complaint
