"""examples/gpt.py by hivemind's Optimizer with local updates: peers find each other by a DHT and average parameters."""

from __future__ import annotations

import os
from statistics import mean
from types import SimpleNamespace

import hivemind
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not said to be

from benchmarks.support.systems.cells import EVERY, own_address, script

#: Hivemind's default of 15 s is for peers that come and go; here all peers are present.
MATCHMAKING_S = 3.0
STORE_PORT = 29510


def main() -> None:
    """Train as one peer."""
    gpt = script()
    args = gpt.arguments()
    rank, count, first = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    text, held_out, characters = gpt.load()
    model = gpt.GPT(characters, args)
    listening = [f"/ip4/{own_address()}/tcp/0"]
    store = TCPStore(first, STORE_PORT, world_size=count, is_master=rank == 0)
    if rank == 0:
        dht = hivemind.DHT(host_maddrs=listening, start=True)
        store.set("peers", "\n".join(map(str, dht.get_visible_maddrs())))
    else:
        dht = hivemind.DHT(host_maddrs=listening, initial_peers=store.get("peers").decode().splitlines(), start=True)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="gpt",
        target_batch_size=args.batch * count * EVERY,
        batch_size_per_step=args.batch,
        optimizer=torch.optim.AdamW(model.parameters(), lr=args.learning_rate),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda epoch: mean(gpt.learning_rate(epoch * EVERY + step, args) for step in range(EVERY))
        ),
        use_local_updates=True,
        matchmaking_time=MATCHMAKING_S,
        delay_state_averaging=False,
    )
    by_itself = SimpleNamespace(step=lambda: None)  # hivemind steps its own scheduler, an epoch per round
    gpt.train(model, optimizer, by_itself, args, rank, text, held_out)
    optimizer.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
