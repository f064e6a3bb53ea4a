"""What PyTorch calls as it is imported, by the entry point group `torch.backends`: it tells it of the backend `wan`.

    dist.init_process_group("wan")            nothing is to be imported before

With TESTBED_BACKEND=wan in the environment, a script that says gloo gets wan, and the log says so. Everything else is
loaded with the first process group; what each `import torch` pays is this file.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

NAME = "wan"
#: Set to NAME, it has scripts that say gloo get wan.
VARIABLE = "TESTBED_BACKEND"
#: The command that starts a controller, for process groups whose environment names none.
CONTROLLER = (sys.executable, "-m", "testbed.controller.standalone")

log = logging.getLogger(__name__)


def register() -> None:
    """Tell PyTorch of the backend. ValueError where the environment asks for one that is none of ours."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    if not hasattr(dist.Backend, NAME.upper()):  # PyTorch before 2.7 refuses a name that it has
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])
    wanted = os.environ.get(VARIABLE)
    if wanted == NAME:
        stand_in_for_gloo()
    elif wanted:
        raise ValueError(f"{VARIABLE}={wanted}: write {VARIABLE}={NAME}, or leave it out")


def stand_in_for_gloo() -> None:
    """Have process groups that are asked to be gloo's be ours from now on."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for name in ("init_process_group", "new_group"):
        ours = replacing(getattr(distributed_c10d, name), by_default=name == "init_process_group")
        for module in (dist, distributed_c10d):
            setattr(module, name, ours)


def replacing(make: Callable[..., Any], by_default: bool) -> Callable[..., Any]:
    """A function that makes a process group, with wan in the place of gloo; where no backend is named, too, if gloo is
    what PyTorch would take `by_default`: new groups have that of the first."""
    import inspect

    import torch

    signature = inspect.signature(make)

    @functools.wraps(make)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        asked = call.arguments.get("backend")
        default = by_default and asked is None and not torch.accelerator.is_available()
        if default or str(asked).lower() in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
            log.warning("%s=%s: %s takes wan in the place of gloo", VARIABLE, NAME, make.__name__)
            call.arguments["backend"] = NAME
        elif "gloo" in str(asked).lower():
            log.warning("%s=%s: %s leaves %s as it is: wan is for all devices", VARIABLE, NAME, make.__name__, asked)
        return make(*call.args, **call.kwargs)

    return replaced


def _make(options: Any, _: object) -> Any:
    """A process group, as PyTorch describes it."""
    from testbed.sync.c10d import make_group

    return make_group(options, CONTROLLER)
