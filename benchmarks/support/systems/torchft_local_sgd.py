"""examples/gpt.py by torchft's LocalSGD: each worker is a replica of its own; rank 0 runs the lighthouse."""

from __future__ import annotations

import os
from datetime import timedelta

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
    here = own_address()
    lighthouse = LighthouseServer(f"{first}:{LIGHTHOUSE_PORT}", min_replicas=count) if rank == 0 else None
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(TIMEOUT),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=count,
        use_async_quorum=False,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=f"http://{first}:{LIGHTHOUSE_PORT}",
        replica_id=f"worker{rank}",
        hostname=here,
        init_sync=False,
    )
    with LocalSGD(manager, model, optimizer, EVERY):
        gpt.train(model, optimizer, gpt.scheduled(optimizer, args), args, rank, text, held_out)
    manager.shutdown()
    if lighthouse is not None:
        lighthouse.shutdown()


if __name__ == "__main__":
    main()
