"""FedAsync: a server merges each member's model on arrival, with less weight the older it is.

No member waits for the others.

member: local steps from version t  -- TrainedModel(t, x_i) -->  server, at version u:  x ← (1 − α_s)·x + α_s·x_i
                                    <-- GivenModel(u + 1, x) --        α_s = α·(1 + s)^−a,  s = u − t   (section 5.2)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.schemes.assignment import GossipAssignment, Setting, best_reached, star_around
from testbed.schemes.options import LocalSteps
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message

if TYPE_CHECKING:
    from torch import Tensor

#: α, the weight of a model that is new, as in the paper's experiments.
MIXING = 0.6
#: a, by which the weight falls with the model's age, as in the paper's experiments.
DECAY = 0.5

SCHEME = Scheme(
    name="fedasync",
    options=LocalSteps,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Xie et al. 2019, arXiv 1903.03934",
)


def assign(options: LocalSteps, setting: Setting) -> GossipAssignment:
    """Place the server at the member that the others reach best. Raises PolicyError if none is reached by all."""
    names, server = setting.view.names, best_reached(setting.view)
    return GossipAssignment(
        protocol="fedasync",
        graph=star_around(server, setting.view),
        rules={"server": server},
        steps=dict.fromkeys(names, options.every),
        evaluators={names[0]: (1, 0)},
    )


@message(18)
class TrainedModel(Message):
    """To the server: the model after the sender's local steps from the server's model of this version."""

    version: int
    parameters: Tensor


@message(19)
class GivenModel(Message):
    """From the server: its model of this version."""

    version: int
    parameters: Tensor


class AsyncMember(TrainingMember):
    """A member that takes `steps` local steps from the newest model it was given, and sends the server the result."""

    def __init__(self, name: str, server: str, parameters: Tensor, iterations: int, steps: int) -> None:
        super().__init__(name, parameters)
        self._server = server
        self._iterations = iterations
        self._steps = steps
        self._version = 0
        self._asked = False

    def program(self) -> Steps[None]:
        """Yield local steps, the push of the result, and the wait for the server's model, in each iteration."""
        for iteration in range(self._iterations):
            yield Advance(iteration)
            local = yield from self.local_steps(iteration, self._steps)
            self._asked = True
            yield Send(self._server, TrainedModel(self._version, local))
            yield Until(lambda: not self._asked, "the server's model")
        yield Advance(self._iterations)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Set the server's model, from which the next local steps begin."""
        if not isinstance(message, GivenModel) or not self._asked:
            raise self.unexpected(sender, message)
        self._version, self.parameters, self._asked = message.version, message.parameters, False
        return ()


class AsyncServer(AsyncMember):
    """A member whose process runs the server as well."""

    def __init__(self, name: str, parameters: Tensor, iterations: int, steps: int) -> None:
        super().__init__(name, name, parameters, iterations, steps)
        self._model = parameters
        self._newest = 0

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Merge a member's model, with less weight the older it is, and send the new one back."""
        if not isinstance(message, TrainedModel):
            return super().receive(sender, message)
        late = self._newest - message.version
        self._model = self._model.lerp(message.parameters, MIXING * (1 + late) ** -DECAY)
        self._newest += 1
        return (Send(sender, GivenModel(self._newest, self._model)),)


def build(options: LocalSteps, training: GossipTraining) -> Participant:
    """Return the participant of a member, or of the member whose process runs the server as well."""
    name, server = training.name, training.node.rules["server"]
    parameters, iterations = training.parameters, training.iterations
    if name == server:
        return AsyncServer(name, parameters, iterations, options.every)
    return AsyncMember(name, server, parameters, iterations, options.every)
