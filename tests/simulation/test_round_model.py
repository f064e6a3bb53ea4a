"""Rounds by both models agree with the bound and with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.emulation.network.routing import Routes
from testbed.planning import make_policy, predict
from testbed.planning.bound import bound
from testbed.run.errors import RunFailed
from testbed.run.view import declared_view
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import ChunkModel, Payload, RoundModel
from testbed.spec.experiment import Experiment
from tests.simulation.experiments import LINKS, load

pytestmark = pytest.mark.pure

MODELS = pytest.mark.parametrize("kind", [ChunkModel, FluidModel])
NO_DELAYS = [{**link, "rtt": "0ms"} for link in LINKS]
MODEL_BYTES = 600_000


def seconds(kind: type[RoundModel], experiment: Experiment, policy: str = "ring", timeout_s: float = 60.0) -> float:
    """Return the duration of a round that all members begin at once."""
    view = declared_view(experiment.topology, MODEL_BYTES)
    network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
    model = kind(network, timeout_s)
    done = model.simulate(make_policy(policy).plan(view), 1, dict.fromkeys(view.names, 0.0), Payload(MODEL_BYTES))
    return max(done.finished_s.values())


@MODELS
def test_without_delays_a_ring_s_round_is_the_bound_of_the_one_way_that_it_takes(
    kind: type[RoundModel], tmp_path: Path
) -> None:
    """The bound takes all links of a triangle, the ring those of one direction, which are half of them."""
    experiment = load(tmp_path, NO_DELAYS)
    least = bound(declared_view(experiment.topology, MODEL_BYTES)).seconds
    assert seconds(kind, experiment) == pytest.approx(2 * least, rel=0.12)  # chunks fill four hops


@MODELS
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(policy=st.sampled_from(["ring", "mst"]), faster=st.integers(0, 2), factor=st.floats(1.0, 8.0))
def test_more_rate_is_never_slower(
    kind: type[RoundModel], tmp_path: Path, policy: str, faster: int, factor: float
) -> None:
    """Compare rounds under the slower network's plan: more rate may be a detour for other auxiliary routes."""
    links = [dict(link) for link in LINKS]
    before = seconds(kind, load(tmp_path, links, sync={"policy": policy}), policy)
    changed: list[dict[str, Any]] = [dict(link) for link in links]
    events = [{"at": "0s", "change": {"link": "->".join(changed[faster]["between"]), "rate": f"{12 * factor:g}mbit"}}]
    after = seconds(kind, load(tmp_path, links, sync={"policy": policy}, events=events), policy)
    assert after <= before * 1.02  # other links' chunks may wait for each other in another order


@MODELS
def test_a_link_that_falls_in_the_midst_of_a_round_slows_the_rest_of_it(kind: type[RoundModel], tmp_path: Path) -> None:
    whole = seconds(kind, load(tmp_path, NO_DELAYS))
    fall = {"at": f"{whole / 2}s", "change": {"link": "a->b", "rate": "6mbit"}}
    assert seconds(kind, load(tmp_path, NO_DELAYS, events=[fall])) == pytest.approx(1.5 * whole, rel=0.1)


@MODELS
def test_a_round_whose_members_are_cut_off_fails(kind: type[RoundModel], tmp_path: Path) -> None:
    events = [{"at": "0.1s", "down": pair} for pair in (["a", "b"], ["c", "a"])]
    with pytest.raises(RunFailed, match="60 s"):
        seconds(kind, load(tmp_path, events=events))


@MODELS
def test_a_round_that_lasts_for_longer_than_the_timeout_fails(kind: type[RoundModel], tmp_path: Path) -> None:
    experiment = load(tmp_path)
    whole = seconds(kind, experiment)
    assert seconds(kind, experiment, timeout_s=1.001 * whole) == whole
    with pytest.raises(RunFailed, match=f"{0.999 * whole:g} s"):
        seconds(kind, experiment, timeout_s=0.999 * whole)


@pytest.mark.parametrize("policy", ["ring", "mst", "netstorm"])
def test_where_nothing_changes_the_fluid_model_is_the_prediction(policy: str, tmp_path: Path) -> None:
    experiment = load(tmp_path)
    view = declared_view(experiment.topology, MODEL_BYTES)
    predicted_s = predict(make_policy(policy).plan(view), view).seconds
    assert seconds(FluidModel, experiment, policy) == pytest.approx(predicted_s, rel=0.02)
