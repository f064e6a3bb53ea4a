"""An entry point of `torch.backends`, which PyTorch calls on import: registers the backend `wan`.

    dist.init_process_group("wan")            needs no further import

With TESTBED_BACKEND=wan in the environment, a script that asks for gloo gets wan, and the log says so. Everything else
is loaded with the first process group, so each `import torch` pays for this file alone.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

NAME = "wan"
#: The environment variable that gives scripts the backend NAME where they ask for gloo.
VARIABLE = "TESTBED_BACKEND"
#: The command that starts a controller, for process groups whose environment names none.
CONTROLLER = (sys.executable, "-P", "-m", "testbed.controller.standalone")

log = logging.getLogger(__name__)


def register() -> None:
    """Register the backend `wan` with PyTorch; with TESTBED_BACKEND=wan, also replace gloo by it.

    Raises:
        ValueError: TESTBED_BACKEND names another backend.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    if not hasattr(dist.Backend, NAME.upper()):  # PyTorch before 2.7 refuses to register a name twice
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])
        dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = over_gloo(dist.monitored_barrier)
    wanted = os.environ.get(VARIABLE)
    if wanted == NAME:
        stand_in_for_gloo()
    elif wanted:
        raise ValueError(f"{VARIABLE}={wanted}: there is no such backend; write {VARIABLE}={NAME}, or leave it out")


def stand_in_for_gloo() -> None:
    """Make process groups of wan from now on where a script asks for gloo.

    A device mesh that finds no process group begins the first one itself, by a reference of its own. A mesh's further
    groups keep the backends that `backend_override` names.
    """
    import torch.distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    for name, modules in (
        ("init_process_group", (dist, distributed_c10d, device_mesh)),
        ("new_group", (dist, distributed_c10d)),
    ):
        ours = replacing(getattr(distributed_c10d, name), by_default=name == "init_process_group")
        for module in modules:
            setattr(module, name, ours)


def over_gloo(barrier: Callable[..., None]) -> Callable[..., None]:
    """Wrap PyTorch's `monitored_barrier`, which refuses all backends but gloo: a group of wan passes it to gloo."""
    import torch.distributed as dist

    @functools.wraps(barrier)
    def replaced(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        asked = dist.group.WORLD if group is None else group
        plain = getattr(asked, "plain", None)
        if plain is None:
            barrier(group, timeout, wait_all_ranks)
        elif timeout is None:
            plain.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            plain.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return replaced


def replacing(make: Callable[..., Any], by_default: bool) -> Callable[..., Any]:
    """Wrap `make`, which makes a process group, so that the backend wan takes the place of gloo; return the wrapper.

    `by_default` says that PyTorch takes gloo where the script names no backend: then wan is taken there too. (A further
    group has the backend of the first.)
    """
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
            log.warning(
                "%s=%s: %s keeps the backend %s: wan replaces gloo only where gloo is for all devices",
                VARIABLE,
                NAME,
                make.__name__,
                asked,
            )
        return make(*call.args, **call.kwargs)

    return replaced


def _make(options: Any, _: object) -> Any:
    """Return a new process group of the backend `wan`, with PyTorch's options."""
    from testbed.sync.c10d import make_group

    return make_group(options, CONTROLLER)
