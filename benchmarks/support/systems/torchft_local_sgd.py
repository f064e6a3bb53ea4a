"""examples/gpt.py by torchft's LocalSGD: each worker is a replica of its own; rank 0 runs the lighthouse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not said to be
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from benchmarks.support.systems.cells import EVERY, own_address, script

LIGHTHOUSE_PORT = 29510
#: The most time of a round over slow links, and of the start.
TIMEOUT = timedelta(seconds=120)


@contextmanager
def replica(
    port: int, least: int, timeout: timedelta, state_dict: Callable[[], Any], load_state_dict: Callable[[Any], None]
) -> Iterator[Manager]:
    """Yield the manager of this worker, which is a replica of its own. The first worker has the lighthouse, at `port`.

    Args:
        port: The lighthouse's port.
        least: The number of replicas without which no step counts.
        timeout: The most time of a round over slow links, and of the start.
        state_dict: Returns what a replica that begins later receives from this one.
        load_state_dict: Takes the state of another replica.
    """
    here = own_address()
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=least,
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=timeout,
        connect_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{port}",
        replica_id=os.environ["TESTBED_WORKER"],
        hostname=here,
        init_sync=False,  # as its documentation has it where all begin with the same parameters
    )
    yield manager
    manager.shutdown()


def main() -> None:
    """Train as one replica."""
    gpt = script()
    args = gpt.arguments()
    rank, count, first = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    text, held_out, characters = gpt.load()
    model = gpt.GPT(characters, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    lighthouse = LighthouseServer(f"{first}:{LIGHTHOUSE_PORT}", min_replicas=count) if rank == 0 else None
    with (
        replica(LIGHTHOUSE_PORT, count, TIMEOUT, model.state_dict, model.load_state_dict) as manager,
        LocalSGD(manager, model, optimizer, EVERY),
    ):
        gpt.train(model, optimizer, gpt.scheduled(optimizer, args), args, rank, text, held_out)
    if lighthouse is not None:
        lighthouse.shutdown()


if __name__ == "__main__":
    main()
