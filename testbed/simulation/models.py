"""Which model simulates an experiment's rounds."""

from __future__ import annotations

from testbed.run.measured import CONGESTION_CONTROL
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import BbrConnections, ChunkModel, RoundModel
from testbed.spec.experiment import Experiment

#: Of more members chunks are too many: a round of 64 takes seconds.
MOST_BY_CHUNKS = 64


def congestion_of(experiment: Experiment) -> str:
    """The congestion control that members would have here."""
    return experiment.spec.sync.congestion or CONGESTION_CONTROL.read_text().strip()


def model_of(experiment: Experiment, network: SimulatedNetwork) -> RoundModel:
    """Chunk by chunk where members are few, else fluid."""
    timeout_s = experiment.spec.sync.round_timeout
    if len(experiment.topology.workers) > MOST_BY_CHUNKS:
        return FluidModel(network, timeout_s)
    connections = BbrConnections() if congestion_of(experiment) == "bbr" else None
    return ChunkModel(network, timeout_s, connections)


def measures(experiment: Experiment, model: RoundModel) -> bool:
    """Whether members tell what they see of paths: of networks too large for chunks only where somebody plans by it."""
    return isinstance(model, ChunkModel) or not experiment.spec.controller.hold


def elements_of(experiment: Experiment) -> int:
    """Of the model."""
    return experiment.spec.own_train.model_bytes // 4
