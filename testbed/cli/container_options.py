"""The options of a command that starts containers: the folder, image and scratch space that programs find there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import BAD_INPUT, fail, quantity
from testbed.spec.errors import Fault, SpecError
from testbed.spec.units import OUT_BYTES, SHM_BYTES, TMP_BYTES, Size

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers
    from testbed.run.terminal.display import Display
    from testbed.spec.experiment import Experiment

SIZE = quantity(Size)
PANEL = "Containers"


def _space_option(where: str, default: str) -> Any:
    words = f"size limit of {where}, such as 1GiB; default: {default}"
    return typer.Option(parser=SIZE, metavar="SIZE", help=words, show_default=False, rich_help_panel=PANEL)


Files = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        exists=True,
        help="a folder of this machine that programs see as /work",
        rich_help_panel=PANEL,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="an image that the engine has, a Dockerfile or its folder, or a requirements file; default: the worker "
        "image",
        rich_help_panel=PANEL,
    ),
]
Renew = Annotated[
    bool,
    typer.Option(
        "--renew-image",
        help="build the image of the Dockerfile or requirements file again, with the newest packages",
        rich_help_panel=PANEL,
    ),
]
Tmp = Annotated[float, _space_option("/tmp", "64MiB")]
Shm = Annotated[float, _space_option("/dev/shm", "64MiB")]
Out = Annotated[float, _space_option("/out, and of the changes in /work", "256MiB")]

#: The default sizes in bytes. Floats are taken unparsed; only a text needs a unit.
TMP, SHM, OUT = float(TMP_BYTES), float(SHM_BYTES), float(OUT_BYTES)


def program_containers(
    files: Path | None, image: str | None, renew: bool, tmp: float, shm: float, out: float
) -> ProgramContainers:
    """Return the containers that the options describe. Exit with bad input if there is no image to renew."""
    if renew and image is None:
        remedy = "--image with a Dockerfile or requirements file; `make update` renews the worker image"
        raise fail(BAD_INPUT, f"--renew-image: needs --image\n    write instead: {remedy}")
    from testbed.emulation.containers.fleet import ProgramContainers, ScratchSpace

    scratch = ScratchSpace(tmp_bytes=int(tmp), shm_bytes=int(shm), out_bytes=int(out))
    return ProgramContainers(files, image, scratch, renew)


def renew_images(experiments: Sequence[Experiment], display: Display) -> None:
    """Build the images that experiments' commands run in again, each once.

    Args:
        experiments: The experiments, all of one file.
        display: Shows how long the builds take.

    Raises:
        SpecError: No experiment names an image, or one names an image that is not built here.
        ImageError: A build failed.
    """
    from testbed.emulation.containers import engine
    from testbed.emulation.containers.program_image import program_image

    programs = [(each.spec.program, each.file.parent) for each in experiments]
    named = [program.image_from(folder) for program, folder in programs if program is not None]
    images = list(dict.fromkeys(image for image in named if image is not None))
    if not images:
        rule = "names no image, and --renew-image builds that of a Dockerfile or requirements file again"
        raise SpecError(
            experiments[0].file, [Fault("train.image", rule, "leave --renew-image out; `make update` renews the usual")]
        )
    client = engine.connect()
    for image in images:
        with display.step(f"building {image} again"):
            program_image(client, image, lambda _: None, renew=True)
