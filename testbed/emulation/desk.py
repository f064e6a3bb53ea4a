"""Turns requests into calls of a standing network, and what these raise into answers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from docker.errors import DockerException

from testbed.emulation.errors import EmulationError
from testbed.emulation.requests import LinkRequest, Reply, Request, StatusRequest
from testbed.emulation.standing import StandingNetwork, state_values
from testbed.spec.errors import SpecError
from testbed.spec.experiment import LinkChange
from testbed.spec.load import validate
from testbed.spec.topology import Topology

log = logging.getLogger(__name__)


class Desk:
    """Where a network's requests come in."""

    def __init__(self, network: StandingNetwork) -> None:
        self._network = network

    def answer(self, request: Request) -> Reply:
        """Never raises: whoever asks for what fails must not take the network down for the others."""
        try:
            return Reply(value=self._do(request))
        except (SpecError, KeyError) as error:
            return Reply(refused=str(error.args[0]))
        except (EmulationError, DockerException) as error:
            log.exception("%s", request)
            return Reply(failed=str(error))
        except Exception as error:
            log.exception("%s", request)
            return Reply(failed=f"{type(error).__name__}: {error}; the network may be half changed")

    def _do(self, request: Request) -> dict[str, Any]:
        network = self._network
        if isinstance(request, StatusRequest):
            return network.status()
        log.info("%s", request)
        if isinstance(request, LinkRequest):
            state = network.change(validate(LinkChange, {"link": request.link, **request.values}, Path(request.link)))
            return state_values(state if request.up is None else network.take(request.link, request.up))
        done = network.swap(Topology.load(request.file))
        log.info("swapped: %s", done)
        return done
