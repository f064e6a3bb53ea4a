"""The options that say what programs find around them in their containers, for the verbs that start some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import BAD_INPUT, fail, quantity
from testbed.spec.units import OUT_BYTES, SHM_BYTES, TMP_BYTES, Size

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers

SIZE = quantity(Size)
OWN = "Their surroundings in containers"


def _room(where: str, usual: str) -> Any:
    words = f"room in {where}; {usual} by default"
    return typer.Option(parser=SIZE, metavar="SIZE", help=words, show_default=False, rich_help_panel=OWN)


Files = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        exists=True,
        help="a folder that they see, as /work",
        rich_help_panel=OWN,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="one that the engine has, a Dockerfile or its folder, or a requirements file",
        rich_help_panel=OWN,
    ),
]
Renew = Annotated[
    bool,
    typer.Option(
        "--renew-image", help="make the file's image again, with what its names bring by now", rich_help_panel=OWN
    ),
]
Tmp = Annotated[float, _room("/tmp", "64MiB")]
Shm = Annotated[float, _room("/dev/shm", "64MiB")]
Out = Annotated[float, _room("/out, and for what changes in /work", "256MiB")]

#: What they have by default, in bytes. As numbers with a fraction they are taken as they are, where a text has a unit.
TMP, SHM, OUT = float(TMP_BYTES), float(SHM_BYTES), float(OUT_BYTES)


def containers(
    files: Path | None, image: str | None, renew: bool, tmp: float, shm: float, out: float
) -> ProgramContainers:
    """What was asked for; it ends the program where there is no image to renew."""
    if renew and image is None:
        remedy = "--image with a Dockerfile or requirements file; `make update` renews the usual image"
        raise fail(BAD_INPUT, f"--renew-image without --image\n    write instead: {remedy}")
    from testbed.emulation.containers.fleet import ProgramContainers, ScratchSpace

    scratch = ScratchSpace(tmp_bytes=int(tmp), shm_bytes=int(shm), out_bytes=int(out))
    return ProgramContainers(files, image, scratch, renew)
