"""What of experiments is simulated; the rest is refused by its name."""

from __future__ import annotations

from testbed.plan import PLAIN_CODEC
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment

#: Schemes whose members all wait for a round's mean before the next step, and whose algorithms are known here.
SCHEMES = ("gradients", "local_sgd", "diloco")


def check_able(experiment: Experiment, gradients: bool) -> None:
    """SpecError with all of an experiment that can't be simulated, or not with `gradients` that are real."""
    spec = experiment.spec
    if spec.program is not None:
        raise SpecError(experiment.file, [Fault("train.command", "is not simulated", "a `model`, or `testbed run`")])
    own = spec.sync.own
    faults = [
        Fault(f"events.{number}.{name}", "is not simulated", "leave it out, or `testbed run`")
        for number, event in enumerate(spec.events)
        for name in ("kill", "graph")
        if getattr(event, name) is not None
    ]
    if spec.sync.strategy not in SCHEMES:
        rule, remedy = f"the strategy {spec.sync.strategy} is not simulated", f"one of {', '.join(SCHEMES)}"
        faults.append(Fault("sync.strategy", rule, remedy))
    for name, plain in (("powersgd_rank", None), ("delay", 0), ("fragments", 1)):
        if getattr(own, name, plain) != plain:
            faults.append(Fault(f"sync.{name}", "is not simulated", f"no `{name}`, or `testbed run`"))
    if gradients and spec.sync.codec != PLAIN_CODEC:
        faults.append(Fault("sync.codec", "means are exact where gradients are real", f"{PLAIN_CODEC}"))
    if spec.elastic is not None:
        faults.append(Fault("elastic", "nobody is lost in a simulation", "leave it out, or `testbed run`"))
    if not spec.compute.step_time:
        rule = "without it a simulation does not know how long members compute"
        faults.append(Fault("compute.step_time", rule, "a duration, such as 60ms"))
    if faults:
        raise SpecError(experiment.file, faults)
