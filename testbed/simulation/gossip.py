"""Members that gossip, on simulated time: each runs its program, and nothing holds them together but their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from testbed.planning import Pair
from testbed.protocol import Goodbye, Report
from testbed.simulation.environment import Environment, EventSchedule
from testbed.simulation.gossiper import Gossiper
from testbed.simulation.gossips import Gossips
from testbed.simulation.messages import MessageNetwork
from testbed.simulation.network import NetworkState
from testbed.simulation.recorder import SAMPLE_S, LinkTraffic, RunRecorder
from testbed.simulation.round_model import Transfer
from testbed.sync.gossip.message import Message


class GossipSimulation:
    """The iterations of a environment's members, by their names."""

    def __init__(
        self, environment: Environment, schedule: EventSchedule, gossips: Mapping[str, Gossips], recorder: RunRecorder
    ):
        self._environment = environment
        self._schedule = schedule
        self._recorder = recorder
        self._traffic = LinkTraffic(environment.queue.clocks, recorder.record_traffic)
        self._network = MessageNetwork(environment.queue, environment.network, self._stale, self._carried)
        self._lowest = 0
        self._left: list[str] = []
        self._members = {
            name: Gossiper(its, environment.queue, self._network, self._member, self._heard, self._ended)
            for name, its in gossips.items()
        }
        self._gossips = gossips

    def run(self, until_s: float = inf) -> float:
        """Simulate all iterations, or those that begin before `until_s`, where the training is cut off.

        Returns:
            When the last member was done, in seconds after training began; `until_s` where members were cut off.

        Raises:
            RunFailed: an iteration can't end.
        """
        queue, controller = self._environment.queue, self._environment.controller
        controller.begin()
        self._schedule.on_change = self._network.refresh
        self._second()
        for member in self._members.values():
            queue.schedule(0.0, member.resume)
        try:
            while len(self._left) < len(self._members) and queue.next_s <= until_s:
                queue.run_next()
        finally:
            for member in self._members.values():
                member.close()
        cut_off = len(self._left) < len(self._members)
        ended_s = until_s if cut_off else queue.clocks.now_s
        queue.run_until(ended_s)
        self._recorder.update(self._lowest, ended_s)
        self._traffic.sample(until_s)
        if not cut_off:
            controller.finish()
        return ended_s

    def _member(self, name: str) -> Gossiper:
        return self._members[name]

    def _stale(self, source: str, target: str, message: Message, later: Sequence[Message]) -> bool:
        return self._members[source].participant.stale(target, message, later)

    def _carried(self, pair: Pair, sent: Transfer, network: NetworkState) -> None:
        self._traffic.add(pair, (sent,), network)

    def _heard(self, report: Report) -> None:
        """A member has entered an iteration. What waits for a round's end, waits until all have left it."""
        self._environment.controller.receive(report)
        lowest = min(member.iteration for member in self._members.values())
        for number in range(self._lowest + 1, lowest + 1):
            self._schedule.complete_round(number, self._environment.queue.clocks.now_s)
        self._lowest = max(self._lowest, lowest)

    def _ended(self, name: str) -> None:
        self._left.append(name)
        rounds = self._environment.controller.spec.rounds
        digest, metrics = self._gossips[name].end()
        self._environment.controller.receive(Goodbye(name, rounds, digest, metrics))

    def _second(self) -> None:
        """Once a second what links carried is sampled, and who watches sees how far members are."""
        now_s = self._environment.queue.clocks.now_s
        self._traffic.sample(now_s)
        self._recorder.update(self._lowest, now_s)
        self._environment.queue.schedule(now_s + SAMPLE_S, self._second)
