"""Steps of one's own, and now and then a round: local SGD, DiLoCo, and DiLoCo streamed in fragments.

With four steps a period, two fragments and a delay of one step (`=` a reduction under way):

    step         1    2    3    4    5    6    7    8
    fragment 0        o====x              o====x            o  what changed since the anchor goes off
    fragment 1                  o====x              o====x  x  its mean moves the anchor, and that the parameters
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from testbed.sync import flat
from testbed.sync.codecs import Residual
from testbed.sync.later import Work
from testbed.sync.outer import Average, Outer
from testbed.sync.strategies.strategy import Reducer, Steps, Strategy


class Fragment:
    """Some of a model's parameters, where all members agreed they were (the `anchor`), and the last round (`start`)."""

    def __init__(self, parameters: Sequence[torch.Tensor], onward: bool) -> None:
        """`onward`: what has changed since a reduction was begun is added to where it leads."""
        self._parameters = parameters
        self._sent = flat.room(parameters) if onward else None
        self._change = flat.room(parameters)
        self._momentum = flat.room(parameters)
        self._anchor = flat.room(parameters)
        self._start = flat.room(parameters)
        self._residual = Residual()
        self._work: Work[Any] | None = None
        self.begun = 0  # the step of the last reduction
        self.agreed = 0  # the step whose parameters all members hold
        self.hold()

    def hold(self) -> None:
        """Take the parameters as they are for agreed upon."""
        flat.gather(self._parameters, self._anchor)
        self._start.copy_(self._anchor)

    def pull(self, part: float) -> None:
        """Move the parameters by a part of their way back to where the last round left them."""
        flat.scatter(flat.gather(self._parameters, self._change).lerp_(self._start, part), self._parameters)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The parameters are the anchor's while inside."""
        here = flat.gather(self._parameters, flat.room(self._parameters))
        flat.scatter(self._anchor, self._parameters)
        yield
        flat.scatter(here, self._parameters)

    def begin(self, reducer: Reducer, weight: float, step: int, scale: float) -> None:
        """Send off what changed since the anchor, as it is after `step`: of it, what is new since the last round
        `scale` times."""
        self.begun = step
        if self._sent is not None:
            flat.gather(self._parameters, self._sent)
        torch.sub(self._start, flat.gather(self._parameters, self._change), out=self._change)
        self._change.mul_(scale).add_(self._anchor).sub_(self._start)
        self._work = reducer.allreduce_later(self._change, weight, self._residual)

    @property
    def under_way(self) -> bool:
        """Whether a reduction was begun and not finished."""
        return self._work is not None

    def finish(self, outer: Outer, mix: float) -> bool:
        """Wait for the mean change, and move the parameters by it from the anchor: all the way but `mix`, or on from
        there by what they have changed meanwhile.

        If the mean is all members' the anchor moves along, by the outer optimizer's step. If it is a group's, the
        anchor stays where all agreed, so that what the groups have changed since can be averaged later on. Returns
        whether it was all members'.
        """
        assert self._work is not None
        whole: bool = self._work.wait().whole
        self._work = None
        if whole:
            self.agreed = self.begun
            outer.step(self._anchor, self._change, self._momentum)
            target = self._anchor
        else:
            target = self._anchor - self._change
        here = flat.gather(self._parameters, self._change)
        if mix and self._sent is None:
            target = torch.lerp(target, here, mix)
        self._start.copy_(target)
        if self._sent is not None:
            target = target + here.sub_(self._sent)
        flat.scatter(target, self._parameters)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Anchor, outer momentum, residual."""
        return {
            "begun": self.begun,
            "agreed": self.agreed,
            "anchor": self._anchor.clone(),
            "start": self._start.clone(),
            "momentum": self._momentum.clone(),
            "residual": self._residual.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.begun = int(state["begun"])
        self.agreed = int(state["agreed"])
        self._anchor.copy_(state["anchor"])
        self._start.copy_(state["start"])
        self._momentum.copy_(state["momentum"])
        self._residual.restore(state["residual"])


class LocalSgd(Strategy):
    """Every `every` steps, members move to where `outer` takes the mean of what they changed.

    With `Average` that is local SGD (Stich 2019), with `Nesterov` DiLoCo (Douillard et al. 2023). With `fragments`
    the model's parameters, in order, are cut into as many parts of about equal size, each synchronized at its own
    step of the period; with `delay` a part's reduction has so many steps' time to go on beside them, and the
    parameters then keep the share `mix` of what they have become meanwhile: streaming DiLoCo (Douillard et al. 2025,
    sections 2.2 and 2.3; there, too, 0.5). A round is one part's reduction. Members that save a checkpoint do so
    after the same step: what is under way is taken in then.

    Under a plan with groups, rounds inside a group move its members to the group's mean, and the outer optimizer
    steps in the rounds among all: hierarchical local SGD, as GeoMX's HFA (H1 = `every`, H2 = H1 × the plan's period).

    Members that take unequally many steps to a round give their `work`, how many times the members' mean theirs is:
    what they changed is divided by it, as FedNova does (Wang et al. 2020), so that who does more does not count more.
    With `prox`, each step goes that part of the way back to where the round began (FedProx, Li et al. 2020: ημ).

    `due` says before each round how many steps of this member it has and what their work is, in place of `every` and
    `work`: members may be given others while they train, each when it likes.

    With `overlap` each round goes on beside the steps of the next one, for as long as they take at least; what the
    member has changed meanwhile is then added to where it leads (DaSGD, Zhou et al. 2020, arXiv 2006.00441). Nothing
    is lost or counted twice, so the members settle where they would without.

    Members must begin with the same parameters. Between rounds they differ. Four times the parameters in memory, five
    with `overlap`.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: Steps | None = None,
        every: int = 8,
        outer: Outer | None = None,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.5,
        weight: float = 1.0,
        work: float = 1.0,
        prox: float = 0.0,
        overlap: bool = False,
        due: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        super().__init__(optimizer, weight)
        _check(every, fragments, delay, mix)
        _check_work(work, prox, delay, overlap)
        self._reducer = reducer
        self._due = due or (lambda: (every, work))
        self._every, work = self._due()
        self._outer = outer or Average()
        self._delay = delay
        self._mix = mix
        self._scale = 1 / work
        self._prox = prox
        self._overlap = overlap
        self._fragments = [Fragment(part, overlap) for part in cut(parameters, fragments)]
        self._steps = 0
        self._began = 0  # the step after which the period began that is on
        self.periods = 0  # that are over

    def after_step(self) -> None:
        """Finish the fragments whose time is over, begin those whose step has come."""
        self._steps += 1
        for fragment in self._fragments:
            if self._prox:
                fragment.pull(self._prox)
            if fragment.under_way and self._steps == fragment.begun + self._delay:
                self._finish(fragment)
        for number, fragment in enumerate(self._fragments):
            if (self._steps - self._began) % self._every == self._offset(number):
                if fragment.under_way:
                    self._finish(fragment)
                fragment.begin(self._reducer, self.weight, self._steps, self._scale)
                if not self._delay and not self._overlap:
                    self._finish(fragment)
        if self._steps == self._began + self._every:
            self._began = self._steps
            self.periods += 1
            self._every, work = self._due()
            self._scale = 1 / work

    def over(self, rounds: int, taken: int) -> bool:
        """Streamed in n fragments, n - 1 of them have changed since their last round when training ends: as many of
        the rounds are kept for them. Groups may settle in up to a period's rounds more."""
        parts = len(self._fragments)
        if parts == 1:
            return self.periods >= rounds
        return taken >= max(1, rounds - parts + 1) * self._every // parts

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The parameters are those of the last round among all while inside."""
        with ExitStack() as stack:
            for fragment in self._fragments:
                stack.enter_context(fragment.shown())
            yield

    def hold(self) -> None:
        """Take the parameters as they are for agreed upon: all members have the same."""
        for fragment in self._fragments:
            fragment.hold()

    def settle(self) -> None:
        """Wait for what is under way, and synchronize what has changed since."""
        self._finish_all()
        while not self._settled():
            pass

    def state_dict(self) -> dict[str, Any]:
        """The anchors, outer momenta, residuals and the count of steps; what is under way is waited for first."""
        self._finish_all()
        fragments = [fragment.state_dict() for fragment in self._fragments]
        return {"steps": self._steps, "began": self._began, "periods": self.periods, "fragments": fragments}

    def handover(self) -> dict[str, Any]:
        """Nothing is owed yet by who begins. For a strategy without delay: nothing is under way between two steps."""
        state = self.state_dict()
        return {**state, "fragments": [{**its, "residual": None} for its in state["fragments"]]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps, self._began, self.periods = (int(state[name]) for name in ("steps", "began", "periods"))
        for fragment, its in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_state_dict(its)

    def _settled(self) -> bool:
        """Synchronize each fragment that not all members have yet; whether they have now. Groups may need several."""
        settled = True
        for fragment in self._fragments:
            if fragment.agreed < self._steps:
                fragment.begin(self._reducer, self.weight, self._steps, self._scale)
                settled &= self._finish(fragment)
        return settled

    def _finish(self, fragment: Fragment) -> bool:
        """Take in what was reduced; what has not changed meanwhile goes all the way. Whether it is all members'."""
        return fragment.finish(self._outer, self._mix if fragment.begun < self._steps else 0.0)

    def _finish_all(self) -> None:
        for fragment in self._fragments:
            if fragment.under_way:
                self._finish(fragment)

    def _offset(self, number: int) -> int:
        """The step of each period at which a fragment goes off: they are spread evenly, the last at its end."""
        return (number + 1) * self._every // len(self._fragments) % self._every


def cut(parameters: Sequence[torch.Tensor], parts: int) -> list[list[torch.Tensor]]:
    """The tensors in `parts` runs of about equal size, in their order; ValueError when there are too few."""
    if len(parameters) < parts:
        raise ValueError(f"{len(parameters)} parameters can't make {parts} fragments; write {len(parameters)} at most")
    total = sum(parameter.numel() for parameter in parameters)
    runs: list[list[torch.Tensor]] = [[]]
    filled = 0
    for left, parameter in zip(range(len(parameters), 0, -1), parameters, strict=True):
        missing = parts - len(runs)
        full = filled + parameter.numel() / 2 > total * len(runs) / parts
        if runs[-1] and missing and (full or left == missing):
            runs.append([])
        runs[-1].append(parameter)
        filled += parameter.numel()
    return runs


def _check(every: int, fragments: int, delay: int, mix: float) -> None:
    if every < 1 or fragments < 1 or every % fragments:
        raise ValueError(f"every={every}, fragments={fragments}: both at least 1, and every a multiple of fragments")
    if not 0 <= delay < every:
        raise ValueError(f"delay={delay}: from 0 to every - 1 = {every - 1} steps")
    if not 0 <= mix < 1:
        raise ValueError(f"mix={mix}: at least 0 and below 1")


def _check_work(work: float, prox: float, delay: int, overlap: bool) -> None:
    if not work > 0 or not 0 <= prox < 1:
        raise ValueError(f"work={work}, prox={prox}: above 0; at least 0 and below 1")
    if overlap and (delay or prox):
        raise ValueError(
            f"delay={delay}, prox={prox}: with overlap a round takes as long as the next one's steps, and "
            "goes on from no one place; leave them out"
        )
    if delay and (work != 1 or prox):
        raise ValueError(f"delay={delay}: what is reduced beside the steps has no round to begin from; leave out work")
