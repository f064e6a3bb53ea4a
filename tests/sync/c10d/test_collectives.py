"""Every public collective has the results of gloo, whether the session or gloo does it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sync.c10d.ranks import TIMEOUT_S, Ranks

pytestmark = pytest.mark.local

#: Twice a type's rounding error for each of the four summands, for the mean, and for its product with 4. Gloo's order
#: of addition depends on the rank that it takes for the first.
ROUNDING = {torch.float64: 4e-15, torch.float32: 2e-6, torch.float16: 8e-3, torch.bfloat16: 6e-2}
DTYPES = (*ROUNDING, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
OPS = ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND")

#: The ranks of a smaller group.
SOME = [0, 1, 3]

Tensors = list[torch.Tensor]


def blank(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(values)


def all_reduce(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    dist.all_reduce(values, op, group)
    return [values]


def all_reduce_later(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    other = values.flip(0)
    works = [dist.all_reduce(each, op, group, async_op=True) for each in (values, other)]
    for work in works:
        work.wait()
    assert all(work.is_completed() for work in works)
    return [values, other]


def coalesced(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    other = values.flip(0)
    if values.is_floating_point():  # as parameters are
        values.requires_grad_()
        other.requires_grad_()
    try:
        with torch.no_grad(), dist._coalescing_manager(group):
            dist.all_reduce(values, op, group)
            dist.all_reduce(other, op, group)
    finally:
        # PyTorch (2.13) keeps it after a refused operation: all later calls of the group would be deferred forever, and
        # wan and gloo would agree because neither does anything.
        dist.distributed_c10d._world.pg_coalesce_state.pop(group, None)
    return [values, other]


def reduce_scatter_single(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    output = blank(values.chunk(group.size())[0])
    dist.reduce_scatter_single(output, values, op, group)
    return [output]


def reduce_scatter(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    parts = [part.clone() for part in values.chunk(group.size())]
    output = blank(parts[0])
    dist.reduce_scatter(output, parts, op, group)
    return [output]


def reduce(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    dist.reduce(values, 1, op, group)
    return [values] if group.rank() == 1 else []


def functionally(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    name = str(op).rpartition(".")[2].partition(":")[0].lower()
    reduced = functional.all_reduce(values, name, group)
    part = functional.reduce_scatter_single(values, name, 0, group)
    return [functional.wait_tensor(reduced), functional.wait_tensor(part)]


def broadcast(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    dist.broadcast(values, 1, group)
    return [values]


def all_gather(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    outputs = [blank(values) for _ in range(group.size())]
    dist.all_gather(outputs, values, group)
    single = values.new_zeros(group.size() * values.numel())
    dist.all_gather_single(single, values, group)
    return [*outputs, single]


def gather_and_scatter(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    first = group.rank() == 0
    outputs = [blank(values) for _ in range(group.size())] if first else None
    dist.gather(values, outputs, 0, group)
    back = blank(values)
    dist.scatter(back, outputs, 0, group)
    assert torch.equal(back, values)
    return outputs or []


def all_to_all(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    output = blank(values)
    dist.all_to_all_single(output, values, group=group)
    return [output]


def point_to_point(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    output, rank, size = blank(values), group.rank(), group.size()
    sending = dist.P2POp(dist.isend, values, group=group, group_peer=(rank + 1) % size)
    receiving = dist.P2POp(dist.irecv, output, group=group, group_peer=(rank - 1) % size)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return [output]


def objects(values: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> Tensors:
    found: list[object] = [None] * group.size()
    dist.all_gather_object(found, {"rank": group.rank()}, group)
    assert found == [{"rank": rank} for rank in range(group.size())]
    dist.barrier(group)
    dist.monitored_barrier(group)
    dist.monitored_barrier(group, timedelta(seconds=TIMEOUT_S), wait_all_ranks=True)
    return []


COLLECTIVES: dict[str, Callable[[torch.Tensor, dist.ReduceOp, dist.ProcessGroup], Tensors]] = {
    each.__name__: each
    for each in (
        *(all_reduce, all_reduce_later, coalesced, reduce_scatter_single, reduce_scatter, reduce, functionally),
        *(broadcast, all_gather, gather_and_scatter, all_to_all, point_to_point, objects),
    )
}


@cache
def groups(name: str) -> tuple[dist.ProcessGroup | None, ...]:
    """Return a wan group and a gloo group of the same ranks, made once; None if this rank is not in them."""
    timeout = timedelta(seconds=TIMEOUT_S)
    if name == "world":
        return dist.group.WORLD, dist.new_group(backend="gloo", timeout=timeout)
    made = [dist.new_group(SOME, timeout, backend) for backend in ("wan", "gloo")]
    return tuple(made) if dist.get_rank() in SOME else (None, None)


def both(rank: int, collective: str, dtype: torch.dtype, part: int, op: str, group: str) -> None:
    """Call a collective over wan and over gloo, and compare the results."""
    ours, theirs = groups(group)
    if ours is None or theirs is None:
        return
    numbers = torch.Generator().manual_seed(rank + part)
    values = (torch.randn(part * ours.size(), generator=numbers) * 4).to(dtype)
    outcomes: list[Tensors | str] = []
    for each in (ours, theirs):
        try:
            outcomes.append(COLLECTIVES[collective](values.clone(), getattr(dist.ReduceOp, op), each))
        except (RuntimeError, ValueError, TypeError) as error:
            outcomes.append(type(error).__name__)
    found, expected = outcomes
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    rounding = ROUNDING.get(dtype.to_real(), 0.0)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=rounding, atol=8 * rounding)


@settings(deadline=None, max_examples=80)
@given(
    collective=st.sampled_from(sorted(COLLECTIVES)),
    dtype=st.sampled_from(DTYPES),
    part=st.sampled_from((1, 3, 500, 4096, 20_000)),
    op=st.sampled_from(OPS),
    group=st.sampled_from(("world", "world", "some")),
)
@example(collective="coalesced", dtype=torch.complex64, part=3, op="MAX", group="world")
# Its work raises what is wrong each time that it is waited for, and is never said to be over.
@example(collective="reduce_scatter", dtype=torch.float32, part=3, op="BAND", group="world")
def test_what_comes_of_it_is_what_comes_of_gloo(
    four: Ranks, collective: str, dtype: torch.dtype, part: int, op: str, group: str
) -> None:
    four.do(both, collective, dtype, part, op, group)


@pytest.mark.parametrize("collective", ["all_reduce", "all_reduce_later", "coalesced"])
def test_large_sums_are_in_it(four: Ranks, collective: str) -> None:
    """The search above may miss collectives that a session does."""
    for dtype in ROUNDING:
        for op in ("SUM", "AVG"):
            four.do(both, collective, dtype, 20_000, op, "world")


def sums_in_a_callback(rank: int) -> float:
    """Make a large sum in a callback of another, and wait for it, as PowerSGD's hook does."""
    second = torch.ones(20_000)

    def reduce_second(_: object) -> torch.Tensor:
        return dist.all_reduce(second, async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(20_000), async_op=True).get_future().then(reduce_second)
    return float(future.wait().mean())


def test_a_callback_of_a_sum_may_wait_for_another(four: Ranks) -> None:
    assert four.do(sums_in_a_callback) == [4.0] * 4


def sum_of_ones(rank: int) -> list[float]:
    sums = []
    for group in groups("world"):
        values = torch.ones(20_000)
        dist.all_reduce(values, group=group)
        sums.append(values.mean().item())
    return sums


def test_after_all_that_sums_are_still_made(four: Ranks) -> None:
    """Otherwise both backends would agree because neither does anything."""
    assert four.do(sum_of_ones) == [[4.0, 4.0]] * 4
