"""Build the wheel and the source archive, and try the wheel in the CI image: `make dist`.

    a copy of the files that git tracks or would --sdist--> dist/wan_testbed-VERSION.tar.gz --wheel--> dist/*.whl
                                                            containers/ci_image.py  <--------------------'

The wheel is built from the unpacked source archive, so that the build fails if the archive lacks a file. Neither is
built in the checkout, where setuptools would leave folders whose old files go into the next wheel.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import docker

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ROOT, ensure_worker_image
from testbed.emulation.errors import ending_of
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.errors import CANNOT, FAILED, DetailedError

DIST = ROOT / "dist"

#: The files and folders in the source archive.
SOURCE = (
    *("pyproject.toml", "setup.py", "setup.sh", "MANIFEST.in", "requirements.lock", "README.md", "LICENSE"),
    *("testbed", "containers", "examples", "experiments", "topologies", "traces"),
)

#: The commands that the wheel is tried with: a user's first ones.
ASKED = (
    ("testbed", "--help"),
    ("testbed", "doctor"),
    ("testbed", "plan", "quickstart", "--policy", "auto", "--model-bytes", "2000000"),
    ("testbed", "simulate", "smoke"),
)

#: The exit code of a program that was interrupted.
INTERRUPTED = 130


class DistError(DetailedError):
    """The wheel or the source archive cannot be built; the text has the output of setuptools."""

    exit_code = CANNOT


def build(target: Path = DIST) -> tuple[Path, Path]:
    """Build the wheel and the source archive into a folder. Returns their paths.

    Raises:
        DistError: setuptools failed.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        for name in SOURCE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
            else:
                shutil.copy(ROOT / name, source)
        archive = target / _built(source, "sdist", target)
        with tarfile.open(archive) as file:
            file.extractall(scratch)
        wheel = target / _built(Path(scratch, archive.name.removesuffix(".tar.gz")), "wheel", target)
    return wheel, archive


def _built(source: Path, kind: str, target: Path) -> str:
    """Build a `kind` of archive with the build system that pyproject.toml names. Returns the archive's file name."""
    program = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", program, str(target)], cwd=source, capture_output=True, text=True)
    if done.returncode != 0:
        raise DistError(f"setuptools could not build the {kind}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def try_wheel(client: docker.DockerClient) -> bool:
    """Run a user's first commands on the wheel in the image, then the smoke experiment. Returns whether all passed."""
    from containers import smoke
    from containers.ci_image import ensure_ci_image

    ensure_worker_image(client)
    image = ensure_ci_image(client)
    for command in ASKED:
        status, said = _run_in(client, image, command)
        # An unprivileged container cannot run the emulation: doctor must say so, and return 3.
        wanted = CANNOT if command[1] == "doctor" else 0
        passed = status == wanted and "Traceback" not in said
        print(f"{'passed' if passed else 'FAILED'}: {' '.join(command)}", flush=True)
        if not passed:
            print(said)
            return False
    return smoke.smoke(client)


def _run_in(client: docker.DockerClient, image: str, command: Sequence[str]) -> tuple[int, str]:
    """Run a command in a container without a network. Returns its exit status, and what it printed."""
    container = client.containers.create(image, [*command[1:]], entrypoint=[command[0]], network_mode="none")
    try:
        container.start()
        return int(container.wait()["StatusCode"]), container.logs().decode(errors="replace")
    finally:
        container.remove(force=True)


def exit_code(work: Callable[[], bool], left: str = "") -> int:
    """Run `work` and return the program's exit code; print the reason where the work could not be done.

    Args:
        work: Returns whether all went well.
        left: Added to the message of an interruption.

    Returns:
        0 if all went well, 1 if not, 3 where this machine can't, 130 after an interruption.
    """
    try:
        with interruptible():
            return 0 if work() else FAILED
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return CANNOT
    except Interrupted as signal_:
        print(f"interrupted ({signal_}){left}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code, text = ending_of(error)
        print(text, file=sys.stderr)
        return code


def build_and_try() -> bool:
    """Build the archives, print their sizes, and try the wheel. Return whether the trial went well."""
    for file in build():
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")
    return try_wheel(engine.connect())


if __name__ == "__main__":
    sys.exit(exit_code(build_and_try))
