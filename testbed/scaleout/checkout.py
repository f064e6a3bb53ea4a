"""The checkout on a host: whether it is what is here, and how it gets there."""

from __future__ import annotations

import hashlib
import io
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from testbed.run.errors import CannotRun
from testbed.scaleout.ssh import Ssh

ROOT = Path(__file__).resolve().parents[2]

#: What of a checkout a run on it follows from: its code, and the versions of packages.
CODE = ("testbed", "pyproject.toml", "requirements.lock", "setup.sh")

#: What else setup.sh and an experiment's files need.
BESIDE = ("containers", "experiments", "topologies", "traces", "README.md")


def files(root: Path = ROOT, names: tuple[str, ...] = CODE) -> Iterator[Path]:
    """What of these a checkout has, in an order that follows from it alone."""
    found = {each for name in names for each in [root / name, *(root / name).rglob("*")] if each.is_file()}
    yield from sorted(each for each in found if "__pycache__" not in each.parts and each.suffix != ".so")


def listed(root: Path = ROOT) -> str:
    """The code's hashes as `sha256sum` prints them, from the checkout's folder on."""
    return "".join(
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(root)}\n" for each in files(root)
    )


def packed(root: Path = ROOT) -> bytes:
    """The files of a checkout as a tar archive, compressed: what git tracks of them, or all where there is no git."""
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z", *CODE, *BESIDE], capture_output=True)
    named = [root / name for name in done.stdout.decode().split("\0") if name]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for each in named if done.returncode == 0 and named else files(root, (*CODE, *BESIDE)):
            if each.is_file():
                archive.add(each, str(each.relative_to(root)))
    return buffer.getvalue()


def bring(ssh: Ssh) -> None:
    """See that a host's folder holds this checkout: copied where there is none. CannotRun where it holds another."""
    folder = shlex.quote(ssh.host.folder)
    if ssh.run(f"test -e {folder}/setup.sh && echo there || true").strip() != "there":
        ssh.run(f"umask 022; mkdir -p {folder} && tar -xz -C {folder}", packed())
    wrong = ssh.run(f"cd {folder} && sha256sum --check --quiet - 2>&1 | head -3 || true", listed().encode()).strip()
    if wrong:
        raise CannotRun(
            f"{ssh.name}: {ssh.host.folder} holds another version of this program ({'; '.join(wrong.splitlines())}); "
            f"bring it to this one's commit, or move it away, and what is here is copied there"
        )


def make_ready(ssh: Ssh) -> None:
    """Have setup.sh install there what is missing, Ray as well. CannotRun with what it said when it can't."""
    ssh.run(f"cd {shlex.quote(ssh.host.folder)} && ./setup.sh scaleout")
