"""Run the smoke experiment in a container with a Docker engine of its own, as on a CI runner: `make smoke`.

    this machine's engine
      └─ container testbed-smoke: privileged, no network, its own dockerd
           ├─ /var/lib/docker    a volume that is kept: it holds the worker image
           ├─ /engine            the inner engine's socket, which is reached from here
           ├─ /testbed/runs      this checkout's runs/
           ├─ CACHE/documentation   the text of `make documentation`, if it was made here
           └─ testbed run smoke --strict
                └─ the workers' containers

It fails unless the verdict is `trusted`. Only the run's directory, the images and that volume stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container

from containers.ci_image import ensure_ci_image
from containers.dist import exit_code
from testbed.emulation.containers import documentation, engine
from testbed.emulation.containers.fleet import remove_containers
from testbed.emulation.containers.image import ROOT, ensure_worker_image, exists
from testbed.emulation.errors import EmulationError
from testbed.emulation.label import LABEL, labelled
from testbed.resources import __version__

#: A network's name that nothing else has; `testbed network clean` finds the container by it.
NAME = "make-smoke"
CONTAINER = VOLUME = "testbed-smoke"
VOLUME_LABEL = "testbed.cache"
#: The control group that containers/ci.Dockerfile names.
CONTROL_GROUP = "testbed-smoke"

RUNS = ROOT / "runs"
#: The folder in which the testbed of the container keeps what it builds (`resources.cache`).
CACHE = f"/var/cache/testbed/{__version__}"
#: The most seconds that the whole run may take.
LIMIT_S = 180
RUN = ("timeout", str(LIMIT_S), "testbed", "run", "smoke", "--strict")

#: Settings of setup.sh that a run needs too: the owner of its files, and the workers' base image.
PASSED_ON = ("SUDO_UID", "SUDO_GID", "BASE_IMAGE")


class SmokeError(EmulationError):
    """The container or its engine cannot be started; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights with which a Docker engine works in a container, as flags of `docker run` and for Docker's API."""

    flags: str
    host_config: Mapping[str, Any]


def grants() -> Iterator[Grant]:
    """Yield the rights to ask for, in order: `--privileged`, then the same rights as single flags.

    An engine that lacks a capability itself, in a container for example, refuses `--privileged`. It is then asked for
    the capabilities that it has.
    """
    yield Grant("--privileged", {"Privileged": True})
    lacking = missing_capabilities(Path("/proc/self/status").read_text())
    security = ["seccomp=unconfined", "apparmor=unconfined"]
    flags = [
        "--cap-add ALL",
        *(f"--cap-drop {name}" for name in lacking),
        *(f"--security-opt {option}" for option in (*security, "systempaths=unconfined")),
        "--device /dev/net/tun",
    ]
    tun = {"PathOnHost": "/dev/net/tun", "PathInContainer": "/dev/net/tun", "CgroupPermissions": "rwm"}
    yield Grant(
        " ".join(flags),
        {
            **{"CapAdd": ["ALL"], "CapDrop": lacking, "SecurityOpt": security, "Devices": [tun]},
            # The API's equivalent of `systempaths=unconfined`: all of /proc and /sys, writable.
            **{"MaskedPaths": [], "ReadonlyPaths": []},
        },
    )


def missing_capabilities(status: str) -> list[str]:
    """Return the capabilities outside the bounding set of a process, given its /proc/PID/status."""
    bounding = int(status.partition("CapBnd:")[2].split()[0], 16)
    listed = subprocess.run(["setpriv", "--list-caps"], capture_output=True, text=True, check=True)
    return [name.upper() for bit, name in enumerate(listed.stdout.split()) if not bounding >> bit & 1]


def smoke(client: docker.DockerClient) -> bool:
    """Build the images, run, and remove all but the results. Returns whether the verdict is `trusted`."""
    worker, image = ensure_worker_image(client), ensure_ci_image(client)
    with labelled(NAME) as folder, machine(client, image, folder) as (container, grant):
        print(f"runs with {grant.flags}")
        inner = inner_engine(container, folder)
        bring_images(client, inner, [worker, *filter(None, [os.environ.get("BASE_IMAGE")])])
        before, began = directories(), time.monotonic()
        status = execute(client, container, RUN)
        seconds = time.monotonic() - began
    if status == 124:
        print(f"the run was ended: it took more than {LIMIT_S} s", file=sys.stderr)
    verdict = "none"
    for directory in directories() - before:
        summary = directory / "summary.json"  # not there if the run was killed
        verdict = json.loads(summary.read_text())["verdict"] if summary.exists() else "none"
        record = {"image": image, "flags": grant.flags, "seconds": round(seconds, 1), "exit_status": status}
        (directory / "container.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"results in {directory}")
    print(f"smoke: verdict {verdict} after {seconds:.0f} s")
    return status == 0 and verdict == "trusted"


@contextmanager
def machine(client: docker.DockerClient, image: str, folder: Path) -> Iterator[tuple[Container, Grant]]:
    """Start the container with its engine, and remove it at the end. Yields the container and its rights."""
    remove_containers(client, NAME)
    client.volumes.create(VOLUME, labels={VOLUME_LABEL: "smoke"})
    RUNS.mkdir(exist_ok=True)
    try:
        container, grant = start(client, image, folder)
        try:
            yield container, grant
        finally:
            container.reload()
            if container.status == "running":
                # An interrupted run goes on in the container: ask it to end and to remove its own containers.
                container.exec_run(["testbed", "network", "clean", "--all"], environment=environment())
                container.stop()
    finally:
        remove_containers(client, NAME)
        remove_control_groups()


def start(client: docker.DockerClient, image: str, folder: Path) -> tuple[Container, Grant]:
    """Start the container with the first grant that the engine accepts.

    Raises:
        SmokeError: the engine refuses all grants.
    """
    refused = []
    for grant in grants():
        host_config = {
            **{"NetworkMode": "none", "CgroupnsMode": "host", "Init": True},
            "Binds": [
                *(f"{VOLUME}:/var/lib/docker", f"{folder}:/engine"),
                *(f"{RUNS}:/testbed/runs", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
                # The text is part of the worker image's recipe, by which the image that is brought is found.
                *(f"{file}:{CACHE}/{name}:ro" for name, file in documentation.entries().items() if file is not None),
            ],
            **grant.host_config,
        }
        created = client.api.create_container(image, host_config=host_config, labels={LABEL: NAME}, name=CONTAINER)
        container = client.containers.get(created["Id"])
        try:
            container.start()
        except APIError as error:
            container.remove(force=True)
            refused.append(f"{grant.flags}: {error.explanation}")
            print(f"refused {refused[-1]}")
        else:
            container.reload()
            return container, grant
    raise SmokeError("the Docker engine refuses every container that could run an engine inside. Use another machine.")


def inner_engine(container: Container, folder: Path) -> docker.DockerClient:
    """Return a client of the engine in the container, once it answers.

    Raises:
        SmokeError: the engine does not answer; the text has its log.
    """
    where = f"unix://{folder}/docker.sock"
    deadline = time.monotonic() + engine.START_TIMEOUT_S
    while not engine.answers(where):
        container.reload()
        if container.status != "running" or time.monotonic() > deadline:
            log = container.logs(tail=engine.LOG_TAIL_LINES).decode(errors="replace")
            raise SmokeError(f"the engine in the container does not answer; its log ends with\n{log}")
        time.sleep(0.1)
    return docker.DockerClient(base_url=where)


def bring_images(outer: docker.DockerClient, inner: docker.DockerClient, names: Iterable[str]) -> None:
    """Load these images into the inner engine, unless it has them, and remove all others."""
    tags = [tag_of(outer, name) for name in names]
    for tag in tags:
        if not exists(inner, tag):
            print(f"bringing {tag} into the container's engine")
            saved = outer.images.get(tag).save(named=tag)
            inner.images.load(saved)  # type: ignore[arg-type]  # an iterable is sent piece by piece
    for image in inner.images.list():
        if not set(tags) & set(image.tags):
            inner.images.remove(str(image.id), force=True)


def tag_of(client: docker.DockerClient, name: str) -> str:
    """Return the tag of a named image as engines list it: `debian:latest` for `debian`.

    Raises:
        SmokeError: the image has no tag.
    """
    tags = client.images.get(name).tags
    if not tags:
        remedy = "give it one (docker tag), and set BASE_IMAGE to the tag"
        raise SmokeError(f"the image {name} has no tag, by which the engine in the container would find it: {remedy}")
    return next((tag for tag in (name, f"{name}:latest") if tag in tags), tags[0])


def execute(client: docker.DockerClient, container: Container, command: Sequence[str]) -> int:
    """Run a command in the container, print its output as it comes, and return its exit status."""
    execution = client.api.exec_create(container.id, list(command), environment=environment())["Id"]
    for said in client.api.exec_start(execution, stream=True):
        sys.stdout.buffer.write(said)
        sys.stdout.flush()
    return int(client.api.exec_inspect(execution)["ExitCode"])


def environment() -> dict[str, str]:
    """Return the environment of programs in the container: its engine, and the settings of set-up."""
    told = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"DOCKER_HOST": "unix:///engine/docker.sock", **told}


def directories() -> set[Path]:
    """Return the directories of the runs that exist."""
    return {path for path in RUNS.iterdir() if path.is_dir() and not path.is_symlink()}


def remove_control_groups() -> None:
    """Remove the inner engine's control groups from the host's hierarchy; they are empty by now."""
    hierarchy = Path("/sys/fs/cgroup")
    for top in (*hierarchy.glob(CONTROL_GROUP), *hierarchy.glob(f"*/{CONTROL_GROUP}")):
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()


if __name__ == "__main__":
    sys.exit(exit_code(lambda: smoke(engine.connect()), ": everything but the results was removed"))
