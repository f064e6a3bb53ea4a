"""The effect of a shaped link on traffic, seen from outside; the same for every backend."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from itertools import cycle, pairwise

import pytest

from testbed.emulation.network.wiring import SINGLE_FRAMES
from testbed.emulation.shaping import Shaper, ShapingError, open_shaper
from testbed.emulation.shaping.base import Applied, LinkCounters, Port
from testbed.emulation.shaping.probe import BACKENDS
from testbed.link import MTU_FRAME_BYTES, CoDel, GilbertElliott, LinkState, Queue, Red
from tests.emulation.shaping.path import TARGET, Path, built_path, burst, run
from tests.emulation.shaping.super_packet import super_packet
from tests.measuring import judge
from tests.waiting import until

STATE = LinkState(rate_bps=50e6, delay_s=0.02)
THERE, BACK = "left->right", "right->left"

#: By how much a link may let a packet go before its time (core/main.c).
GRAIN_MS = 0.25


@pytest.fixture(
    params=[
        pytest.param("userspace", marks=pytest.mark.physics),
        pytest.param("netem", marks=pytest.mark.guest),
    ]
)
def shaper(request: pytest.FixtureRequest) -> Iterator[Shaper]:
    """One of each backend: userspace on the host, netem where the kernel has it."""
    with open_shaper(request.param) as shaper:
        yield shaper


#: A kernel's random numbers have no seed: what is right is further off than this once in two million.
DEVIATIONS = 5


def since(before: LinkCounters, now: LinkCounters) -> LinkCounters:
    """Return the difference of a link's counters."""
    return LinkCounters(**{one.name: getattr(now, one.name) - getattr(before, one.name) for one in fields(now)})


def shape(shaper: Shaper, path: Path, state: LinkState = STATE) -> None:
    shaper.attach({path.there: state, path.back: STATE})


def numbers(answers: list[tuple[int, float]]) -> list[int]:
    """Return the numbers of pings, in the order in which they were answered."""
    return [number for number, _ in answers]


def test_a_round_trip_takes_the_delay_of_both_links(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    assert numbers(path.answered(30)) == list(range(1, 31))
    path.judge_round_trip(40 - 2 * GRAIN_MS, 40 + 3)


def test_a_super_packet_longer_than_the_queue_passes(shaper: Shaper, path: Path) -> None:
    """As with segmentation offload a host hands 40 frames over as one packet of 59 kB."""
    shape(shaper, path, LinkState(50e6, 0.001, queue=Queue(20e3, "bytes")))
    assert super_packet(path, 40) == 40
    assert shaper.counters()[THERE].packets == 40


def test_a_burst_leaves_at_the_rate(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=8e6, delay_s=0.01, queue=Queue(400, "packets")))
    frame_s = MTU_FRAME_BYTES * 8 / 8e6

    def quickest_stretch() -> float:
        """Return the time of a burst's quickest stretch of 50 frames, in times of a frame."""
        arrivals = burst(path, 300)
        assert [number for number, _ in arrivals] == list(range(300))
        times = [at for _, at in arrivals[50:]]  # the first may hold what a token bucket had saved
        # A pause of the host may let a bucket save two frames, never more. One before the first of these frames is
        # read makes all of them seem quicker, by as many frames as it takes.
        assert times[-1] - times[0] >= (len(times) - 10) * frame_s
        return min(times[at + 49] - times[at] for at in range(0, 250, 50)) / frame_s

    judge(quickest_stretch, 47, 49 * 1.02, "frames")


def test_a_queue_holds_its_limit_and_no_more(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=0.25e6, delay_s=0.01, queue=Queue(20, "packets")))
    dropped = 0

    def held() -> float:
        """Return the number of a burst's frames that the link did not drop."""
        nonlocal dropped
        arrivals = burst(path, 100)
        assert len(arrivals) >= 20
        before, dropped = dropped, shaper.counters()[THERE].dropped_queue
        assert dropped - before == 100 - len(arrivals)
        return len(arrivals)

    # 20 wait, one is being sent, a bucket may let two pass at once and some leave while the rest arrive, one in 48 ms:
    # more than three only where the sender was held up for 150 ms.
    judge(held, 20, 26, "frames")


def test_jitter_spreads_but_does_not_reorder(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=50e6, delay_s=0.02, jitter_s=0.01))
    answers = path.answered(150, 0.005)
    assert numbers(answers) == list(range(1, 151))
    round_trips = [ms for _, ms in answers]
    assert max(round_trips) - min(round_trips) > 5
    assert min(round_trips) >= 30 - 2 * GRAIN_MS


def test_reordering_is_asked_for(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(50e6, 0.02, jitter_s=0.01, reorder=True, queue=Queue(400, "packets")))
    order = [number for number, _ in burst(path, 150)]
    assert sorted(order) == list(range(150))
    # Frames that the link lets go 0.24 ms apart, with ±10 ms of jitter, come the wrong way round nearly half the time,
    # and one of them by chance where their sender is held up.
    assert sum(after < before for before, after in pairwise(order)) > 15
    shaper.apply({THERE: LinkState(rate_bps=50e6, delay_s=0.02, jitter_s=0.01)})
    assert numbers(path.answered(50, 0.005)) == list(range(1, 51))


def test_a_delay_that_falls_does_not_reorder(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    stop = threading.Event()

    def keep_changing() -> None:
        while not stop.is_set():
            for delay_s in (0.1, 0.02):
                shaper.apply({THERE: LinkState(rate_bps=50e6, delay_s=delay_s)})
                time.sleep(0.1)

    changing = threading.Thread(target=keep_changing)
    changing.start()
    try:
        assert numbers(path.answered(200, 0.005)) == list(range(1, 201))
    finally:
        stop.set()
        changing.join()


def test_loss_is_within_its_binomial_interval(shaper: Shaper, path: Path) -> None:
    count, loss = 1000, 0.3
    shape(shaper, path, LinkState(rate_bps=50e6, delay_s=0.001, loss=loss, queue=Queue(count, "packets")))
    lost = count - len(burst(path, count))
    assert abs(lost - count * loss) < DEVIATIONS * math.sqrt(count * loss * (1 - loss))
    assert shaper.counters()[THERE].dropped_loss == lost


def test_bursts_of_loss_have_their_mean_and_their_length(shaper: Shaper, path: Path) -> None:
    """Random loss of the same mean would come in runs of 1.2."""
    count, bursts = 7000, GilbertElliott(p=0.05, r=0.25)
    shape(shaper, path, LinkState(50e6, 0.001, loss=bursts.mean, bursts=bursts, queue=Queue(count, "packets")))
    came = [number for number, _ in burst(path, count)]
    runs = [after - before - 1 for before, after in pairwise([-1, *came]) if after - before > 1]
    # Neighbours' states go together with 1 - p - r = 0.7, which makes the scatter √(1.7/0.3) times the binomial's.
    scatter = math.sqrt(count * bursts.mean * (1 - bursts.mean) * 1.7 / 0.3)
    assert abs(sum(runs) - count * bursts.mean) < DEVIATIONS * scatter
    assert statistics.mean(runs) == pytest.approx(
        1 / bursts.r, abs=DEVIATIONS * math.sqrt(1 - bursts.r) / bursts.r / math.sqrt(len(runs))
    )


def test_down_passes_nothing_and_up_passes_again(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    shaper.apply({THERE: LinkState(rate_bps=50e6, delay_s=0.02, up=False)})
    assert path.ping(5, wait_s=0.3) == []
    shaper.apply({THERE: LinkState(rate_bps=0, delay_s=0.02)})
    assert path.ping(5, wait_s=0.3) == []
    shaper.apply({THERE: STATE})
    assert numbers(path.answered(5)) == [1, 2, 3, 4, 5]


def test_changes_lose_nothing_that_waits(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    stop = threading.Event()

    def keep_changing() -> None:
        while not stop.is_set():
            for rate in (10e6, 50e6):
                shaper.apply({THERE: LinkState(rate_bps=rate, delay_s=0.02), BACK: STATE})
                time.sleep(0.01)

    changing = threading.Thread(target=keep_changing)
    changing.start()
    try:
        assert numbers(path.answered(200, 0.005)) == list(range(1, 201))
    finally:
        stop.set()
        changing.join()


def test_a_new_rate_holds_for_what_waits_already(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=0.25e6, delay_s=0.001, queue=Queue(400, "packets")))

    def change_under_way() -> None:
        until(lambda: shaper.counters()[THERE].packets >= 10)
        shaper.apply({THERE: LinkState(20e6, 0.001, queue=Queue(400, "packets"))})

    speed_up = threading.Thread(target=change_under_way)
    speed_up.start()
    arrivals = burst(path, 300)
    speed_up.join()
    assert len(arrivals) == 300
    # At 0.25 Mbit/s alone they would take 14.5 s; ten leave in half a second, and the rest within 0.2 s of the change,
    # which a busy host may delay.
    assert arrivals[-1][1] - arrivals[0][1] < 10


def test_tcp_reaches_the_rate_and_no_more(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=20e6, delay_s=0.005))

    def goodput() -> float:
        """Return the part of the ideal goodput that arrives."""
        with path.server():
            words = ["iperf3", "--client", TARGET, "--time", "3", "--omit", "1", "--json"]
            report = json.loads(run(*path.command("source", *words)))
        return float(report["end"]["sum_received"]["bits_per_second"]) / (20e6 * 1448 / 1514)

    judge(goodput, 0.85, 1.03, "of the goodput")
    seen = shaper.counters()[THERE]
    # A super-packet counts as the frames it stands for.
    assert seen.bytes / seen.packets <= MTU_FRAME_BYTES


def queueing_ms(shaper: Shaper, path: Path, discipline: CoDel | Red) -> float:
    """Return the median time that a ping waits behind a TCP flow, once the flow has found its rate."""
    shape(shaper, path, LinkState(10e6, 0.01, queue=Queue(100, "packets", discipline)))
    run(*path.command("source", "ethtool", "-K", "left", *SINGLE_FRAMES[3:]))
    with path.server():
        idle = min(ms for _, ms in path.answered(5))
        flow = path.command("source", "iperf3", "--client", TARGET, "--time", "600")
        with subprocess.Popen(flow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flowing:
            try:
                time.sleep(2)
                answers = path.answered(60, 0.1)
            finally:
                flowing.terminate()
    return statistics.median(ms for _, ms in answers) - idle


DISCIPLINES = pytest.mark.parametrize("discipline", [CoDel(), Red()], ids=["codel", "red"])


@DISCIPLINES
def test_a_discipline_keeps_the_queue_short(shaper: Shaper, path: Path, discipline: CoDel | Red) -> None:
    """Its 100 packets would take 121 ms, and cubic would fill it."""
    assert 1 < queueing_ms(shaper, path, discipline) < 60


@pytest.mark.guest
@pytest.mark.long
@DISCIPLINES
def test_a_flow_queues_as_long_as_before_the_kernel_s_own_discipline(discipline: CoDel | Red) -> None:
    """Each backend has a path of its own: what it leaves on a port lets no other backend's packets pass."""

    def wait_ms(backend: str) -> float:
        with BACKENDS[backend]() as shaper:
            return queueing_ms(shaper, paths[backend], discipline)

    with ExitStack() as stack:
        paths = {backend: stack.enter_context(built_path(backend)) for backend in BACKENDS}
        judge(lambda: wait_ms("userspace") / wait_ms("netem"), 0.8, 1.2, "of the kernel's")


def test_counters_count_frames_as_on_the_wire(shaper: Shaper, path: Path) -> None:
    shape(shaper, path, LinkState(rate_bps=50e6, delay_s=0.001, queue=Queue(400, "packets")))
    assert len(burst(path, 200)) == 200
    seen = shaper.counters()[THERE]
    # Address resolution or what an earlier test's connection sends again may be among them.
    others = seen.packets - 200
    assert 0 <= others <= 3
    assert 0 <= seen.bytes - 200 * MTU_FRAME_BYTES <= others * MTU_FRAME_BYTES
    assert (seen.dropped_queue, seen.dropped_loss, seen.backlog_bytes) == (0, 0, 0)


@pytest.mark.parametrize("later_s", [0.005, 0.25])
def test_a_busy_link_reports_the_error_of_its_rate(shaper: Shaper, path: Path, later_s: float) -> None:
    """Also where its delay changes meanwhile, back and forth from measurement to measurement."""
    state = LinkState(rate_bps=2e6, delay_s=0.005, queue=Queue(400, "packets"))
    shape(shaper, path, state)
    seen, delays_s = LinkCounters(), cycle([later_s, state.delay_s])

    def error() -> float:
        """Return the relative error of the rate while a burst passes."""
        nonlocal seen
        before = seen
        sending = threading.Thread(target=burst, args=(path, 300))
        sending.start()
        shaper.apply({THERE: replace(state, delay_s=next(delays_s))})
        while sending.is_alive():
            shaper.counters()
            time.sleep(0.05)
        seen = shaper.counters()[THERE]
        assert seen.busy_s - before.busy_s > 0.8
        found = since(before, seen).rate_error
        assert found is not None
        return found

    judge(error, -0.02, 0.02, "of the rate")


def test_a_port_detached_is_dead_until_attached_again(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    assert len(path.answered(3)) == 3
    shaper.detach(THERE)
    assert THERE not in shaper.counters()
    assert path.ping(3, wait_s=0.3) == []
    shaper.attach({path.there: STATE})
    assert len(path.answered(3)) == 3


def test_what_was_not_attached_is_refused(shaper: Shaper, path: Path) -> None:
    with pytest.raises(KeyError):
        shaper.apply({"nowhere": STATE})
    with pytest.raises(ShapingError, match="no-such"):
        shaper.attach({path.back: STATE, Port("a->b", path.namespace("left"), "no-such"): STATE})
    assert shaper.counters() == {}, "one that cannot be shaped takes the others of its batch along"
    shaper.detach("a->b")
    shaper.attach({path.there: STATE})
    with pytest.raises(ShapingError) as caught:
        shaper.attach({path.there: STATE})
    assert (caught.value.rule, caught.value.link) == ("attached", path.there.link)


def slow(delay_s: float) -> LinkState:
    return replace(STATE, delay_s=delay_s)


def await_applied(shaper: Shaper, count: int) -> list[Applied]:
    """Wait until `count` states are in force, none of them before its moment, and return them."""
    found: list[Applied] = []

    def all_are() -> bool:
        new = shaper.applied()
        assert [one for one in new if one.due_s > time.monotonic()] == []
        found.extend(new)
        return len(found) >= count

    until(all_are)
    return found


def test_states_come_to_be_in_force_by_themselves_at_their_moments(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    shaper.expect({})  # what times them is there: a process of its own may take a second to start
    now = time.monotonic()
    shaper.expect({THERE: [(now + 0.3, slow(0.06)), (now + 0.6, slow(0.1))], BACK: [(now + 0.6, slow(0.03))]})
    shaper.expect({THERE: [(now + 0.9, slow(0.04))]})
    found = await_applied(shaper, 4)
    due = {(one.link, round(one.due_s - now, 6)) for one in found}
    assert due == {(THERE, 0.3), (THERE, 0.6), (BACK, 0.6), (THERE, 0.9)}
    assert all(one.late_s >= 0 for one in found)
    assert shaper.applied() == []
    path.judge_round_trip(70 - 3, 70 + 3)
    assert shaper.failure() is None


def test_later_states_give_way_to_those_that_are_asked_for(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    shaper.expect({})
    for later_s in (0.5, 2.0, 8.0):
        now = time.monotonic()
        shaper.expect(
            {THERE: [(now + later_s, slow(0.5)), (now + 600, slow(0.7))], BACK: [(now + later_s, slow(0.03))]}
        )
        shaper.apply({THERE: slow(0.01)}, {THERE: [(now + later_s - 0.1, slow(0.05))]})
        if in_time := time.monotonic() < now + later_s:
            break
        shaper.apply({}, {THERE: [], BACK: []})  # what was there first may have been in force before there was another
        shaper.applied()
    assert in_time
    assert {one.link for one in await_applied(shaper, 2)} == {THERE, BACK}
    path.judge_round_trip(80 - 3, 80 + 3)
    shaper.apply({}, {THERE: []})
    shaper.detach(THERE)
    assert shaper.applied() == []


def test_what_is_due_already_is_put_in_force_at_once(shaper: Shaper, path: Path) -> None:
    shape(shaper, path)
    now = time.monotonic()
    shaper.expect({THERE: [(now - 1, slow(0.5)), (now, slow(0.05))]})
    assert [one.late_s >= 0 for one in await_applied(shaper, 2)] == [True, True]
    path.judge_round_trip(70 - 3, 70 + 3)
