"""What a simulation leaves for its summary."""

from __future__ import annotations

from testbed.controller.outcome import status
from testbed.run.conclusion.verdict import SIMULATED
from testbed.run.training import Outcome
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage


def outcome_of(stage: Stage, script: SimulatedScript, ended_s: float) -> Outcome:
    """As a run's: no link was measured from outside, none was late."""
    began_s = stage.queue.clocks.zero_s
    return Outcome(
        fidelity={},
        backend=SIMULATED,
        training_started_s=began_s,
        training_ended_s=began_s + ended_s,
        lateness={},
        rate_errors={},
        status=status(stage.controller),
        network_swaps=script.swaps,
        missed_events=list(script.waiting),
    )
