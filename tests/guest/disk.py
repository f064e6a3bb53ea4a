"""A disk for the guest's Docker engine: an ext4 file in build/ with the worker image in it.

The image is loaded on the host, by a second engine whose data is on the disk: that takes half a minute the first time,
12 s when the worker's code has changed since, and nothing otherwise. The guest's writes do not reach it.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
from docker.errors import DockerException

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image
from tests.guest.kernel import REPOSITORY, GuestError

DISK = REPOSITORY / "build" / "guest-engine.ext4"
#: Sparse: 0.8 GB of it is used.
DISK_BYTES = 4 << 30
#: Says which image is on it.
RECORD = DISK.with_suffix(".image")

ENGINE_DEADLINE_S = 60.0


def engine_disk() -> Path:
    """Return the disk, with the worker image of the present code. Raises GuestError, EngineError or ImageError."""
    ours = engine.connect()
    tag = ensure_worker_image(ours, lambda _: None)
    if DISK.exists() and RECORD.exists() and RECORD.read_text() == tag:
        return DISK
    RECORD.unlink(missing_ok=True)
    if not DISK.exists():
        with DISK.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", str(DISK))
    with tempfile.TemporaryDirectory(prefix="tb") as scratch:
        with _mounted(Path(scratch)) as data, _engine_on(data, Path(scratch)) as theirs:
            outdated = [str(image.id) for image in theirs.images.list()]
            (loaded,) = theirs.images.load(ours.images.get(tag).save(named=tag))
            for image in outdated:
                if image != loaded.id:
                    theirs.images.remove(image, force=True)
    RECORD.write_text(tag)
    return DISK


@contextmanager
def _mounted(scratch: Path) -> Iterator[Path]:
    folder = scratch / "data"
    folder.mkdir()
    _run("mount", "-o", "loop", str(DISK), str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--recursive", str(folder))


@contextmanager
def _engine_on(data: Path, scratch: Path) -> Iterator[docker.DockerClient]:
    """Run an engine with its data in a folder, apart from the host's engine: in its own network namespace above all."""
    address = f"unix://{scratch}/socket"
    files = ("--data-root", str(data), "--exec-root", str(scratch / "exec"), "--pidfile", str(scratch / "pid"))
    command = ["setpriv", "--pdeathsig", "TERM", "unshare", "--net", "dockerd", "--host", address, *files]
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + ENGINE_DEADLINE_S
        while True:
            with suppress(DockerException):
                client = docker.DockerClient(base_url=address, timeout=300)
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise GuestError(f"no engine for the guest's disk:\n{(scratch / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise GuestError(f"the guest's disk: `{' '.join(command)}` failed: {done.stderr.strip()}")
