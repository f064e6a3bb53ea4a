"""examples/gpt.py by PyTorch's PostLocalSGDOptimizer: gradients in the first steps, then means of models at times."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.systems.cells import EVERY, script


def main() -> None:
    """Train as one rank."""
    gpt = script()
    args = gpt.arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    text, held_out, characters = gpt.load()
    model = DistributedDataParallel(gpt.GPT(characters, args))
    alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
    state = PostLocalSGDState(  # type: ignore[no-untyped-call]
        None, alone, start_localSGD_iter=EVERY, post_local_gradient_allreduce=False
    )
    model.register_comm_hook(state, post_localSGD_hook)
    local = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=EVERY, warmup_steps=EVERY))
    gpt.train(model, optimizer, gpt.scheduled(optimizer, args), args, dist.get_rank(), text, held_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
