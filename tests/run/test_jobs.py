"""What a worker is told that comes while the others train."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.run.jobs import Jobs
from testbed.spec.experiment import Experiment
from testbed.worker.partition import partition
from testbed.workload import Workload
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write

pytestmark = pytest.mark.pure

SITES = ("paris", "tokyo", "dallas")


def work_of(file: Path, *added: str) -> Workload:
    """Of the last of the workers that were added at these sites."""
    experiment = Experiment.load(file)
    topology = experiment.topology
    for site in added:
        topology = topology.with_worker(site)
    worker = topology.last_worker(added[-1])
    request, newcomer = Jobs(experiment).newcomer(topology, worker, "10.0.0.9")
    assert newcomer.name == worker.name == request.worker.name
    assert request.command is not None and {worker.name, "10.0.0.9"} <= set(request.command)
    return Workload.from_json(newcomer.job.workload)


@given(st.lists(st.sampled_from(SITES), min_size=1, max_size=5))
def test_its_share_of_the_data_is_one_as_for_one_worker_more(
    tmp_path_factory: pytest.TempPathFactory, added: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("newcomer")
    sites = spoilt(EXPERIMENT, "train", "partition", to={"kind": "sites", "alpha": 0.5})
    work = work_of(write(folder, experiment={**sites, "elastic": {"quorum": 2}}), *added)
    assert (work.shard, work.shards) == (3 + len(added), 4 + len(added))
    assert work.sites[work.shard] == added[-1] and len(work.sites) == work.shards
    labels = [number % 10 for number in range(500)]
    draws = (labels, 4, "sites", 0.5, work.seed, ("paris", "paris", "tokyo", "dallas"))
    first = partition(*draws)
    of_site = {sample for shard, site in enumerate(draws[-1]) if site == added[-1] for sample in first[shard]}
    own = partition(labels, work.shards, "sites", 0.5, work.seed, work.sites)[work.shard]
    assert own and set(own) <= of_site, "it learns from what is its site's"


def test_it_is_as_fast_as_its_site_says(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("time_s,speed\n0,1\n5,0.5\n")
    topology = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5)
    compute = {"step_time": "100ms", "speeds": {"tokyo": "day.csv"}, "stragglers": {"tokyo-w0": 3.0}}
    file = write(tmp_path, topology, {**EXPERIMENT, "elastic": {"quorum": 2}, "compute": compute})
    work = work_of(file, "tokyo")
    assert work.step_seconds == pytest.approx(0.2) and work.speeds == ((0.0, 1.0), (5.0, 0.5))


def test_codecs_between_sites_are_its_too(tmp_path: Path) -> None:
    sync = {"policy": "mst", "link_codecs": {"paris->tokyo": "int8"}}
    experiment = Experiment.load(write(tmp_path, experiment={**EXPERIMENT, "sync": sync}))
    topology = experiment.topology.with_worker("tokyo")
    _, newcomer = Jobs(experiment).newcomer(topology, topology.last_worker("tokyo"), "10.0.1.3")
    assert newcomer.link_codecs == {"paris-w0->tokyo-w1": "int8", "paris-w1->tokyo-w1": "int8"}
