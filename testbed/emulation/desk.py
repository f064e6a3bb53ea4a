"""Turns requests into calls of a testbed, and what these raise into answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from docker.errors import DockerException

from testbed.emulation.errors import EmulationError
from testbed.emulation.history import History
from testbed.emulation.requests import HistoryRequest, LinkRequest, Reply, Request, RequestServer, StatusRequest
from testbed.emulation.status import state_values, status
from testbed.emulation.testbed import Backend, Step, Swapped, Testbed, Workers
from testbed.link import LinkState
from testbed.spec.errors import SpecError
from testbed.spec.topology import Topology

log = logging.getLogger(__name__)


@contextmanager
def answering(
    topology: Topology | Path, *, name: str, backend: Backend, workers: Workers, step: Step
) -> Iterator[Testbed]:
    """A testbed that is up while inside, and answers requests. Raises what it does where it does not come up."""
    history = History()
    testbed = Testbed(topology, name=name, backend=backend, workers=workers, observer=history.note, step=step)
    with testbed, RequestServer(name, Desk(testbed, history).answer):
        yield testbed


class Desk:
    """Where a network's requests come in; `history` is what the testbed tells its observer."""

    def __init__(self, testbed: Testbed, history: History) -> None:
        self._testbed = testbed
        self._history = history

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
        if isinstance(request, StatusRequest):
            return status(self._testbed)
        if isinstance(request, HistoryRequest):
            states, count = self._history.since(request.since)
            return {"states": states, "count": count}
        log.info("%s", request)
        if isinstance(request, LinkRequest):
            return state_values(self._change(request))
        done = _record(self._testbed.swap(request.file))
        log.info("swapped: %s", done)
        return done

    def _change(self, request: LinkRequest) -> LinkState:
        link = self._testbed.links[request.link]
        state = link.change(**request.values)
        if request.up is None:
            return state
        return link.bring_up() if request.up else link.take_down()


def _record(swapped: Swapped) -> dict[str, Any]:
    counted = asdict(swapped)
    return {**counted.pop("difference"), **counted}
