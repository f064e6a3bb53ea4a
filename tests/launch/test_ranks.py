"""What each process of a command is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.launch.ranks import Peer, is_agent, ranks_of

pytestmark = pytest.mark.pure

PARIS = [Peer("paris-w0", "paris", "10.0.0.2"), Peer("tokyo-w0", "tokyo", "10.0.1.2")]


@given(workers=st.integers(1, 12), nproc=st.integers(1, 6))
def test_ranks_are_torchruns(workers: int, nproc: int) -> None:
    """Each rank once, worker by worker; a worker's ranks know which they are there."""
    peers = [Peer(f"s{number}-w0", f"s{number}", f"10.0.{number}.2") for number in range(workers)]
    ranks = ranks_of({peer.name: ["train"] for peer in peers}, peers, nproc)
    assert [int(rank.environment["RANK"]) for rank in ranks] == list(range(workers * nproc))
    for number, rank in enumerate(ranks):
        assert rank.worker == rank.environment["TESTBED_WORKER"] == peers[number // nproc].name
        assert divmod(number, nproc) == (int(rank.environment["GROUP_RANK"]), int(rank.environment["LOCAL_RANK"]))
        assert rank.environment["WORLD_SIZE"] == str(workers * nproc)
        assert rank.environment["LOCAL_WORLD_SIZE"] == str(nproc)
        assert rank.environment["MASTER_ADDR"] == peers[0].address
    assert len({rank.name for rank in ranks}) == len(ranks)


def test_a_process_knows_the_network() -> None:
    environment = ranks_of({"paris-w0": ["train"], "tokyo-w0": ["train"]}, PARIS, 1)[1].environment
    assert environment["TESTBED_SITE"] == "tokyo"
    assert environment["TESTBED_PEERS"] == "paris-w0=10.0.0.2,tokyo-w0=10.0.1.2"
    assert {environment[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL", "TP")} == {"eth0"}


def test_torchrun_is_one_agent_a_worker() -> None:
    command = ["torchrun", "train.py"]
    agents = ranks_of({"paris-w0": command, "tokyo-w0": command}, PARIS, 2)
    assert [agent.name for agent in agents] == ["paris-w0", "tokyo-w0"]
    told = [{name: value for name, value in agent.environment.items() if name.startswith("PET_")} for agent in agents]
    common = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "10.0.0.2", "PET_MASTER_PORT": "29500"}
    assert told == [{**common, "PET_NODE_RANK": "0"}, {**common, "PET_NODE_RANK": "1"}]
    assert all("RANK" not in agent.environment for agent in agents)


@pytest.mark.parametrize(
    ("command", "agent"),
    [
        (["/opt/venv/bin/torchrun", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "train.py", "torchrun"], False),
        (["python", "-m", "train"], False),
    ],
)
def test_torchrun_is_known_by_its_name(command: list[str], agent: bool) -> None:
    assert is_agent(command) == agent
