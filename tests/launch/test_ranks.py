"""The variables of each process of a command."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.launch.ranks import Peer, agent_words, alone, ranks_of

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


@given(workers=st.integers(1, 5), nproc=st.integers(1, 4))
def test_an_agent_that_a_script_hides_is_a_node_for_each_process(workers: int, nproc: int) -> None:
    """A torchrun in a script starts as many processes as were asked for, each with its rank."""
    peers = [Peer(f"s{number}-w0", f"s{number}", f"10.0.{number}.2") for number in range(workers)]
    for rank in ranks_of({peer.name: ["./run.sh"] for peer in peers}, peers, nproc):
        told = rank.environment
        assert told["PET_NNODES"] == told["WORLD_SIZE"]
        assert told["PET_NODE_RANK"] == told["RANK"]
        assert told["PET_NPROC_PER_NODE"] == "1"


AGENTS = [
    "/opt/venv/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "python3.11 -u -W ignore -m torch.distributed.launch train.py",
    "python /usr/local/bin/torchrun train.py",
    "bash -c 'torchrun train.py'",
    "bash -lc 'cd sub && exec torchrun train.py'",
    "sh -ec 'set -e\nOMP_NUM_THREADS=1 python -m torch.distributed.run train.py 2>&1 | tee /out/log'",
    "bash -c 'if true; then torchrun train.py; fi'",
    "uv run torchrun train.py",
    "uv run --with tqdm --python 3.12 torchrun train.py",
    "uv run -m torch.distributed.run train.py",
    "uv run -- python -m torch.distributed.run train.py",
    "poetry run torchrun train.py",
    "conda run -n base --no-capture-output torchrun train.py",
    "env OMP_NUM_THREADS=1 torchrun train.py",
    "nice -n 5 timeout 600 torchrun train.py",
    "numactl --cpunodebind=0 bash -c 'uv run torchrun train.py'",
    "bash -c '# start\ncd sub # where it is\ntorchrun train.py'",
    "bash -c 'uv run \\\n  torchrun train.py'",
    "bash -c 'export RUN=a#b; torchrun train.py'",
]

NO_AGENTS = [
    "python train.py torchrun",
    "python -m train",
    "python -m train -m torch.distributed.run",
    "python -c torchrun",
    "bash -c 'python train.py --launcher torchrun'",
    "bash -c 'echo torchrun'",
    "bash -c 'python train.py # torchrun'",
    "bash -c '# first\n#torchrun\npython train.py'",
    "bash -c 'echo \"\" torchrun'",
    "bash -c 'echo \"\ntorchrun train.py\"'",
    'bash -c "an open \'quotation"',
    "bash torchrun",
    "uv run python train.py torchrun",
    "uv run train.py torchrun",
    "env torchrun=1 python train.py",
    "accelerate launch train.py",
    "./run.sh",
    "bash",
    "env",
]


@pytest.mark.parametrize(
    ("line", "agent"), [*((line, True) for line in AGENTS), *((line, False) for line in NO_AGENTS)]
)
def test_torchrun_is_known_by_its_name_also_behind_what_runs_it(line: str, agent: bool) -> None:
    assert (agent_words(shlex.split(line)) is not None) == agent


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("torchrun --standalone train.py", "--standalone"),
        ("torchrun --nproc-per-node 2 --standalone --no-python ./train", "--standalone"),
        ("uv run bash -c 'exec torchrun --nproc_per_node=gpu --standalone train.py'", "--standalone"),
        ("bash -c 'torchrun \\\n  --standalone \\\n  train.py'", "--standalone"),
        ("bash -c '# on each\ntorchrun --standalone train.py'", "--standalone"),
        ("bash -c 'torchrun --rdzv-id \"\" --standalone train.py'", "--standalone"),
        ("python -m torch.distributed.run --run-path --nnodes=1:1 train.py", "--nnodes 1:1"),
        ("uv run -m torch.distributed.run --nnodes 1 train.py", "--nnodes 1"),
        ("torchrun --nnodes 2 --node-rank 1 train.py", ""),
        ("torchrun --rdzv-id --standalone train.py", ""),
        ("torchrun train.py --standalone", ""),
        ("torchrun -m train --nnodes 1", ""),
        ("python train.py --standalone", ""),
        ("torchrun --nnodes", ""),
    ],
)
def test_a_torchrun_that_meets_no_other_is_known_by_its_option(line: str, option: str) -> None:
    assert alone(shlex.split(line)) == option


@given(
    words=st.lists(
        st.sampled_from(["bash", "uv", "python", "-c", "-m", "--", "'", "a b", "torchrun", "", "\\", "--nnodes"]),
        max_size=6,
    )
)
def test_any_command_may_be_asked_about(words: list[str]) -> None:
    assert not alone(words)
