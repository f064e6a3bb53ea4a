"""What of experiments is simulated; the rest is refused by its name."""

from __future__ import annotations

from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment


def check_able(experiment: Experiment, gradients: bool) -> None:
    """SpecError with all of an experiment that can't be simulated, or not with `gradients` that are real."""
    spec = experiment.spec
    if spec.program is not None:
        raise SpecError(experiment.file, [Fault("train.command", "is not simulated", "a `model`, or `testbed run`")])
    faults = [
        Fault(f"events.{number}.{name}", "is not simulated", "leave it out, or `testbed run`")
        for number, event in enumerate(spec.events)
        for name in ("kill", "graph")
        if getattr(event, name) is not None
    ]
    if getattr(spec.sync.own, "powersgd_rank", None) is not None and not gradients:
        rule = "what it sends depends on the model's matrices, which only members that learn have"
        faults.append(Fault("sync.powersgd_rank", rule, "no `powersgd_rank`, or `--gradients`"))
    if spec.elastic is not None:
        faults.append(Fault("elastic", "nobody is lost in a simulation", "leave it out, or `testbed run`"))
    if not spec.compute.step_time:
        rule = "without it a simulation does not know how long members compute"
        faults.append(Fault("compute.step_time", rule, "a duration, such as 60ms"))
    if faults:
        raise SpecError(experiment.file, faults)
