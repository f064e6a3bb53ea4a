"""The numbers of the tree: bucket and delay line, over the whole range of rates."""

from __future__ import annotations

import errno
import struct
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network.netlink import attributes
from testbed.emulation.shaping import ShapingError, tc
from testbed.emulation.shaping.base import SUPER_PACKET_BYTES, Applied, Port
from testbed.emulation.shaping.netem import (
    MOST_JITTER_S,
    NetemShaper,
    _Tree,
    _update_counters,
    burst_bytes,
    delay_line_packets,
    queue_limit,
)
from testbed.emulation.shaping.timer import Batch, Timer, TimerAnswer
from testbed.link import MTU_FRAME_BYTES, CoDel, GilbertElliott, LinkState, Queue, Red

pytestmark = pytest.mark.pure

rates = st.floats(64e3, 10e9)


@given(rates)
def test_a_bucket_lends_little_in_a_window_of_100_ms(rate: float) -> None:
    """At most 1 % of what the window may carry, or two frames."""
    assert 2 * MTU_FRAME_BYTES <= burst_bytes(rate) <= max(0.01 * rate / 8 * 0.1 + 1, 2 * MTU_FRAME_BYTES)


@given(rates, st.floats(0, 1))
def test_the_delay_line_holds_small_frames_at_full_rate(rate: float, delay: float) -> None:
    assert delay_line_packets(LinkState(rate, delay)) * 64 >= rate / 8 * delay


def test_rates_of_a_trace_end_no_burst_of_losses() -> None:
    """The kernel puts the chain into its good state with each request to netem."""
    bursts = GilbertElliott(p=0.005, r=0.01)
    state = LinkState(3.2e6, 0.02, loss=bursts.mean, bursts=bursts)
    tree = tree_of(state)
    for rate_bps in (64e3, 9e6, 23e6):
        other = replace(state, rate_bps=rate_bps)
        assert tree.change(other)[0] == tree.rate(other)


@given(rates)
def test_a_class_is_valid_at_any_rate(rate: float) -> None:
    assert tc.htb_class(1, 2, 3, rate, burst_bytes(rate)).body


@pytest.mark.parametrize("jitter_s", [0.0, 0.01])
@pytest.mark.parametrize("reorder", [False, True])
def test_the_delay_line_keeps_the_order_of_packets_unless_asked_otherwise(jitter_s: float, reorder: bool) -> None:
    """netem keeps the order only where it has a rate."""
    request = tc.netem(
        1, 2, delay_s=0.1, jitter_s=jitter_s, reorder=reorder, loss=0.0, limit_packets=1000, create=False
    )
    options = attributes(request.body[20:])[2]
    (rate,) = struct.unpack_from("=I", attributes(options[24:])[6])
    assert (rate == 0) == reorder


def tree_of(state: LinkState) -> _Tree:
    return _Tree(cast("tc.TrafficControl", None), Path("/nowhere"), 1, tc.handle(1), state, since=0.0, seen_at=0.0)


@given(rates, st.floats(1, 1e9), st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_red_is_valid_at_any_rate_and_length(rate: float, limit: float, least: float, more: float) -> None:
    """The kernel refuses lengths that are too long for the weight, and shifts of 32 and more."""
    most = (least + more) * limit
    request = tc.red(1, 2, 3, least_bytes=least * limit, most_bytes=most, probability=0.02, rate_bps=rate)
    options = attributes(attributes(request.body[20:])[2])
    none, first, last, weight_log, _, cell_log, _ = struct.unpack("=3I4B", options[1])
    assert none == 0, "the kernel would replace the queue"
    assert 0 < first < last
    assert last.bit_length() + weight_log < 32
    assert 1 <= weight_log <= 9
    assert cell_log < 32
    assert sorted(options[2]) == [*options[2]]
    assert (len(options[2]), options[2][0]) == (256, 0)
    assert max(options[2]) < 32


def test_red_s_mean_halves_in_the_idle_time_of_355_frames() -> None:
    """(1 - 2^-9)^355 is a half."""
    options = attributes(
        attributes(tc.red(1, 2, 3, least_bytes=1e4, most_bytes=3e4, probability=0.02, rate_bps=10e6).body[20:])[2]
    )
    cell_us = 1 << options[1][14]
    halved = options[2].index(1) * cell_us
    assert halved == pytest.approx(355 * MTU_FRAME_BYTES * 8 / 10, abs=cell_us)


@pytest.mark.parametrize("discipline", [None, CoDel(), Red()])
def test_a_discipline_is_built_once_and_changed_in_place(discipline: CoDel | Red | None) -> None:
    state = LinkState(10e6, 0.1, queue=Queue(discipline=discipline))
    tree, slower = tree_of(state), replace(state, rate_bps=20e6)
    assert all(request in tree.build() for request in tree.queue(state, create=True))
    assert tree.change(slower) == [tree.delay(slower), tree.rate(slower), *tree.queue(slower)]
    other = replace(state, queue=Queue(discipline=None if discipline else CoDel()))
    assert tree.change(other)[-1:] == tree.queue(other, create=True)[-1:]


def test_the_drops_of_a_replaced_discipline_stay_drops_of_the_queue() -> None:
    """netem counts its own drops and those of the queues in it, also of a queue that is gone and what waited there."""
    tree = tree_of(LinkState(10e6, 0.1, queue=Queue(discipline=CoDel())))
    fifo, codel = tc.handle(3), tc.handle(5)
    counted = []
    looks = [(codel, 10, 17), (codel, 20, 28), (fifo, 0, 40), (fifo, 5, 46), (codel, 0, 46), (codel, 4, 50)]
    for queue, drops, in_all in (*looks, (codel, 1, 53)):  # there was another queue between the last two
        seen = {tree.root: tc.Statistics(drops=in_all), tc.handle(2): tc.Statistics()}
        _update_counters(tree, 0.0, {**seen, queue: tc.Statistics(drops=drops)})
        counted.append((tree.counted.dropped_queue, tree.counted.dropped_loss))
    assert counted == [(10, 7), (20, 8), (32, 8), (37, 9), (37, 9), (41, 9), (44, 9)]


def test_drops_go_on_where_the_kernel_s_counters_of_32_bits_begin_again() -> None:
    tree, counted = tree_of(LinkState(10e6, 0.1)), []
    for drops, in_all in ((2**31 - 1, 2**31), (2**32 - 2, 2**32 - 1), (3, 6)):
        queue, netem = tc.Statistics(drops=drops), tc.Statistics(drops=in_all)
        _update_counters(tree, 0.0, {tree.root: netem, tc.handle(2): tc.Statistics(), tc.handle(3): queue})
        counted.append((tree.counted.dropped_queue, tree.counted.dropped_loss))
    assert counted == [(2**31 - 1, 1), (2**32 - 2, 1), (2**32 + 3, 3)]


@pytest.mark.parametrize(
    ("number", "discipline", "said"),
    [(errno.ENOENT, CoDel(), "modprobe -a sch_codel"), (errno.ENOENT, None, ""), (errno.EPERM, CoDel(), "")],
)
def test_a_module_that_the_kernel_lacks_is_named(number: int, discipline: CoDel | None, said: str) -> None:
    class Refusing:
        def apply(self, *_: object) -> None:
            raise OSError(number, "refused")

    shaper, before = NetemShaper(), LinkState(10e6, 0.1)
    tree = tree_of(before)
    shaper._trees, shaper._controls = {"a->b": tree}, {tree.netns: cast("tc.TrafficControl", Refusing())}
    with pytest.raises(ShapingError, match="refused") as caught:
        shaper.apply({"a->b": replace(before, rate_bps=5e6, queue=Queue(discipline=discipline))})
    assert said in str(caught.value) and ("modprobe" in str(caught.value)) == bool(said)


def test_a_refused_change_is_taken_back_whole() -> None:
    """The kernel takes a new rate and delay, and refuses the discipline beside them."""
    sent: list[list[object]] = []

    class RefusesTheFirst:
        def apply(self, *requests: object) -> None:
            sent.append(list(requests))
            if len(sent) == 1:
                raise OSError(errno.ENOENT, "refused")

    class Queued:
        def ask(self, batch: Batch) -> TimerAnswer:
            asked.append((list(batch.forget), [each.due_s for each in batch.coming.get("a->b", [])]))
            return TimerAnswer([], None)

        def failure(self) -> None: ...

    asked: list[tuple[list[str], list[float]]] = []
    shaper, before = NetemShaper(), LinkState(10e6, 0.1)
    tree, rows = tree_of(before), [(5.0, LinkState(9e6, 0.1)), (6.0, before)]
    shaper._trees, shaper._controls = {"a->b": tree}, {tree.netns: cast("tc.TrafficControl", RefusesTheFirst())}
    shaper._timer, shaper._coming = cast(Timer, Queued()), {"a->b": deque(rows)}
    wanted = LinkState(5e6, 0.2, queue=Queue(discipline=Red()))
    with pytest.raises(ShapingError, match="refused"):
        shaper.apply({"a->b": wanted}, {"a->b": [(5.0, wanted)]})
    assert sent[1] == [tree.delay(before), tree.rate(before), *tree.queue(before, create=True)]
    assert (shaper.failure(), tree.state) == (None, before)
    assert asked == [(["a->b"], []), ([], [5.0, 6.0])], "the rows of its trace come as before"
    assert list(shaper._coming["a->b"]) == rows


def test_a_port_that_is_refused_in_part_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lacks the discipline, and carries out all other requests beside that one."""
    sent: list[object] = []

    class Refusing:
        def index(self, _: str) -> int:
            return 1

        def qdiscs(self) -> dict[tuple[int, int], tuple[int, tc.Statistics]]:
            return {}

        def apply(self, *requests: object) -> None:
            sent.extend(requests)
            raise OSError(errno.ENOENT, "refused")

        def close(self) -> None: ...

    monkeypatch.setattr("testbed.emulation.shaping.netem.time", SimpleNamespace(monotonic=lambda: 0.0))
    shaper, state = NetemShaper(), LinkState(10e6, 0.1, queue=Queue(discipline=CoDel()))
    port, tree = Port("a->b", Path("/nowhere"), "eth0"), tree_of(state)
    shaper._controls = {port.netns: cast("tc.TrafficControl", Refusing())}
    with pytest.raises(ShapingError):
        shaper.attach({port: state})
    assert tree.delay(state, create=True, dead=True) in sent
    assert tree.delay(state) not in sent


def test_a_port_that_cannot_be_stopped_hides_neither_the_error_nor_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third port and all later requests are refused: two of each port before it, its own, and a stop of each."""

    class Refusing:
        asked, refuses = 0, False

        def index(self, name: str) -> int:
            self.refuses = name == "eth2"
            return int(name[-1]) + 1

        def qdiscs(self) -> dict[tuple[int, int], tuple[int, tc.Statistics]]:
            return {}

        def apply(self, *_: object) -> None:
            self.asked += 1
            if self.refuses:
                raise OSError(errno.EPERM, "refused")

        def close(self) -> None: ...

    monkeypatch.setattr("testbed.emulation.shaping.netem.time", SimpleNamespace(monotonic=lambda: 0.0))
    shaper, kernel, netns = NetemShaper(), Refusing(), Path("/nowhere")
    shaper._controls = {netns: cast("tc.TrafficControl", kernel)}
    ports = [Port(link, netns, f"eth{n}") for n, link in enumerate(("a->b", "b->c", "c->a"))]
    with pytest.raises(ShapingError, match="c->a"):
        shaper.attach(dict.fromkeys(ports, LinkState(10e6, 0.1)))
    assert kernel.asked == 2 + 2 + 1 + 2
    assert shaper._trees == {}


def test_a_link_is_stopped_also_where_the_process_that_times_its_states_has_ended() -> None:
    sent: list[object] = []

    class Kernel:
        def apply(self, *requests: object) -> None:
            sent.extend(requests)

        def close(self) -> None: ...

    class Ended:
        def ask(self, _: Batch) -> TimerAnswer:
            raise ShapingError("ended")

    state = LinkState(10e6, 0.1)
    shaper, tree = NetemShaper(), tree_of(state)
    tree.control = cast("tc.TrafficControl", Kernel())
    shaper._trees, shaper._controls, shaper._timer = {"a->b": tree}, {tree.netns: tree.control}, cast(Timer, Ended())
    shaper._coming = {"a->b": deque([(1.0, state)])}
    shaper.detach("a->b")
    assert sent == [tree.delay(state, dead=True)]
    assert shaper._controls == {}


def test_a_jitter_that_the_kernel_would_cut_is_refused_before_anything_is_changed() -> None:
    shaper, before = NetemShaper(), LinkState(10e6, 0.1)
    tree, longer = tree_of(before), replace(before, jitter_s=MOST_JITTER_S + 0.001)
    with pytest.raises(ShapingError) as refused:
        shaper.attach({Port("a->b", Path("/nowhere"), "eth0"): longer})
    assert refused.value.rule == "jitter"
    shaper._trees = {"a->b": tree}  # without a control, a change would fail
    for states, coming in (({"a->b": longer}, None), ({}, {"a->b": [(1.0, before), (2.0, longer)]})):
        with pytest.raises(ShapingError) as refused:
            shaper.apply(states, coming)
        assert refused.value.rule == "jitter"
    with pytest.raises(ShapingError) as refused:
        shaper.expect({"a->b": [(1.0, longer)]})
    assert refused.value.rule == "jitter" and (tree.state, shaper.failure()) == (before, None)


def test_a_link_that_goes_down_keeps_its_rate_so_that_its_queue_drains() -> None:
    up = LinkState(10e6, 0.01)
    down = replace(up, rate_bps=0.0)
    tree = tree_of(up)
    assert tree.rate(down) not in tree.change(down)
    assert tree.delay(down) in tree.change(down), "the delay line drops every packet of a link that is down"
    assert tree.rate(replace(up, rate_bps=5e6)) in tree.change(replace(up, rate_bps=5e6))
    assert tree.change(up) == []


@pytest.mark.parametrize(("loss", "least"), [(0.01, MTU_FRAME_BYTES), (0.0, SUPER_PACKET_BYTES)])
def test_a_queue_shorter_than_a_packet_lets_one_through(loss: float, least: int) -> None:
    """With random loss hosts send single frames, else super-packets."""
    assert queue_limit(LinkState(1e6, 0.001, loss=loss, queue=Queue(500, "bytes"))) == least


def seen_of(tree: _Tree, size: int) -> dict[int, tc.Statistics]:
    """Return the statistics of a tree that has passed `size` bytes, and in whose queue others wait."""
    return {
        tree.root: tc.Statistics(),
        tc.handle(2): tc.Statistics(bytes=size),
        tc.handle(3): tc.Statistics(backlog_bytes=MTU_FRAME_BYTES),
    }


def test_a_row_of_a_trace_allows_its_rate_from_its_moment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that comes before the row was noted would hold the earlier rate against a queue that the row empties."""
    slow = LinkState(8e6, 0.1)
    shaper, tree, moments = NetemShaper(), tree_of(slow), iter([0.0, 0.1])
    sizes, answers = iter([0, 550_000]), iter([[], [Applied("a->b", due_s=0.04, late_s=0.01)]])

    class Kernel:
        def qdiscs(self) -> dict[tuple[int, int], tuple[int, tc.Statistics]]:
            return {(tree.index, own): (tc.ROOT, its) for own, its in seen_of(tree, next(sizes)).items()}

    class Sender:
        def ask(self, _: Batch) -> TimerAnswer:
            return TimerAnswer(next(answers), None)

    monkeypatch.setattr("testbed.emulation.shaping.netem.time", SimpleNamespace(monotonic=lambda: next(moments)))
    tree.control = cast("tc.TrafficControl", Kernel())
    shaper._trees, shaper._controls, shaper._timer = {"a->b": tree}, {tree.netns: tree.control}, cast(Timer, Sender())
    shaper._coming = {"a->b": deque([(0.04, replace(slow, rate_bps=80e6))])}
    shaper.counters()
    seen = shaper.counters()["a->b"]
    assert (seen.steady_bytes, seen.allowed_bytes) == (550_000, pytest.approx(550_000))
    assert [applied.link for applied in shaper._found] == ["a->b"], "those that ask for it are still told of the row"


def test_the_queue_of_a_link_that_went_down_drains_at_a_rate_that_is_allowed() -> None:
    up = LinkState(8e6, 0.1)
    tree = tree_of(up)
    _update_counters(tree, 0.0, seen_of(tree, 0))
    tree.enforce(0.05)
    tree.state = replace(up, up=False)
    _update_counters(tree, 0.1, seen_of(tree, 100_000))
    assert (tree.counted.steady_bytes, tree.counted.allowed_bytes) == (100_000, pytest.approx(100_000))
