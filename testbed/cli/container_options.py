"""The options of a command that starts containers: the folder, image and scratch space that programs find there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import bad_input, quantity
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


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The options of a command that starts containers, as they were given. The fields are in the order of `--help`."""

    files: Files = None
    image: Image = None
    renew: Renew = False
    # The default sizes are floats, which are taken unparsed; only a text needs a unit.
    tmp: Annotated[float, _space_option("/tmp", "64MiB")] = float(TMP_BYTES)
    shm: Annotated[float, _space_option("/dev/shm", "64MiB")] = float(SHM_BYTES)
    out: Annotated[float, _space_option("/out, and of the changes in /work", "256MiB")] = float(OUT_BYTES)

    @property
    def scratch(self) -> dict[str, float]:
        """The size limits of scratch space in bytes, by the options' names."""
        return {"tmp": self.tmp, "shm": self.shm, "out": self.out}


def takes_container_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `ContainerOptions` in place of its parameter `containers`, which has their values.

    Typer reads the options from the signature of the function that this returns.
    """
    own = inspect.signature(command, eval_str=True)
    options = inspect.signature(ContainerOptions, eval_str=True).parameters

    @wraps(command)
    def called(**given: Any) -> None:
        containers = ContainerOptions(**{name: given.pop(name) for name in options})
        command(**given, containers=containers)

    shown = [
        option.replace(kind=parameter.kind)
        for parameter in own.parameters.values()
        for option in (options.values() if parameter.name == "containers" else (parameter,))
    ]
    called.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return called


def program_containers(options: ContainerOptions) -> ProgramContainers:
    """Return the containers that the options describe. Exit with bad input if there is no image to renew."""
    if options.renew and options.image is None:
        remedy = "--image with a Dockerfile or requirements file; `make update` renews the worker image"
        raise bad_input("--renew-image: needs --image", remedy)
    from testbed.emulation.containers.fleet import ProgramContainers
    from testbed.emulation.containers.limits import ScratchSpace

    scratch = ScratchSpace(tmp_bytes=int(options.tmp), shm_bytes=int(options.shm), out_bytes=int(options.out))
    return ProgramContainers(options.files, options.image, scratch, options.renew)


def renew_images(experiments: Sequence[Experiment], display: Display) -> None:
    """Build again, once each, the images in which the commands of one file's experiments run.

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
        rule = "names no image, and --renew-image needs a Dockerfile or a requirements file"
        raise SpecError(
            experiments[0].file, [Fault("train.image", rule, "leave the option out; `make update` renews the default")]
        )
    client = engine.connect()
    for image in images:
        with display.step(f"building {image} again"):
            program_image(client, image, lambda _: None, renew=True)
