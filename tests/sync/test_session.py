"""Whole sessions over loopback: exact and bit-identical under any plan, also while plans change."""

from __future__ import annotations

import gc
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import Goodbye, Held, Hello, Job
from testbed.sync.transport.frame import NONCE_BYTES, Greeting
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, random_plan, star, two_level
from tests.sync.sessions import refuse_threads, run_with
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

Work = Callable[[sync.Session], object]


def run(directory: Path, plan: Plan, work: Work, settings: Job | None = None) -> tuple[dict[str, object], Controller]:
    """Run `work` at every member, on a thread each. Returns the results by member, and the controller."""
    with Controller(directory, plan, settings or job()) as controller:
        return run_with(controller, work), controller


@contextmanager
def short_timeout(session: sync.Session, seconds: float) -> Iterator[None]:
    """Shorten a member's timeout for a part of a test; a busy machine may take longer for the other parts."""
    group = session._engine.current
    usual, group.settings = group.settings, replace(group.settings, timeout_s=seconds)
    try:
        yield
    finally:
        group.settings = usual


def values(member: str, round_number: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    seed = int(member[1:]) * 1000 + round_number
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reducing_until(epoch: int, elements: int) -> Callable[[sync.Session], list[torch.Tensor]]:
    """Return a member's work: rounds until one has used `epoch`. It returns their means."""

    def work(session: sync.Session) -> list[torch.Tensor]:
        reduced: list[torch.Tensor] = []
        at = 0
        while at < epoch:
            tensor = values(session.name, len(reduced), elements)
            at = session.allreduce(tensor).epoch
            session.report()
            reduced.append(tensor)
        return reduced

    return work


def check_exact(results: dict[str, object], rounds: int, elements: int, weights: dict[str, float]) -> None:
    """Assert that all means are bit-identical at all members, and within 1e-6 of the float64 mean."""
    members = list(results)
    total = sum(weights.values())
    for k in range(rounds):
        expected = sum(values(m, k, elements).double() * weights[m] for m in members) / total
        got = [results[m][k] for m in members]  # type: ignore[index]
        assert all(torch.equal(got[0], other) for other in got[1:])
        error = (got[0].double() - expected).abs().max() / expected.abs().mean()
        assert error <= 1e-6


def reducing(rounds: int, elements: int, weights: dict[str, float]) -> Work:
    def work(session: sync.Session) -> list[torch.Tensor]:
        reduced = []
        for k in range(rounds):
            tensor = values(session.name, k, elements)
            session.allreduce(tensor, weight=weights[session.name])
            session.report()
            reduced.append(tensor)
        return reduced

    return work


MEMBERS = names(6)
PLANS = {
    "alone": Plan(0, names(1), (star(names(1), "m0"),)),
    "star": Plan(0, MEMBERS, (star(MEMBERS, "m3"),), 1024),
    "chain": Plan(0, MEMBERS, (chain(MEMBERS),), 1024),
    "two levels": Plan(0, MEMBERS, (two_level([MEMBERS[:3], MEMBERS[3:]]),), 4096),
    "many roots": Plan(
        0, MEMBERS, tuple(Plan.from_json(random_plan(random.Random(3), MEMBERS, 0).to_json()).trees), 1024
    ),
}


@pytest.mark.parametrize("shape", PLANS)
@pytest.mark.parametrize("elements", [1, 3, 20_011])
def test_the_mean_is_exact_and_the_same_bits_everywhere(tmp_path: Path, shape: str, elements: int) -> None:
    plan = PLANS[shape]
    weights = {m: 1.0 + i for i, m in enumerate(plan.members)}
    results, controller = run(tmp_path, plan, reducing(4, elements, weights))
    check_exact(results, 4, elements, weights)
    assert {(r.lost, r.duplicated) for r in controller.reports()} == {(0, 0)}
    assert not any(goodbye.error for goodbye in controller.goodbyes())


@pytest.mark.parametrize("seed", range(8))
def test_random_trees(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    plan = random_plan(draw, names(draw.randint(2, 8)), epoch=draw.randint(0, 99), chunk_bytes=1024)
    weights = {m: draw.uniform(0.1, 40) for m in plan.members}
    elements = draw.randint(1, 5000)
    results, _ = run(tmp_path, plan, reducing(3, elements, weights))
    check_exact(results, 3, elements, weights)


def test_float64(tmp_path: Path) -> None:
    def work(session: sync.Session) -> torch.Tensor:
        tensor = values(session.name, 0, 3000, torch.float64)
        return session.allreduce(tensor).tensor

    results, _ = run(tmp_path, PLANS["chain"], work)
    expected = torch.stack([values(m, 0, 3000, torch.float64) for m in MEMBERS]).mean(0)
    assert all(torch.allclose(result, expected, atol=1e-15) for result in results.values())  # type: ignore[arg-type]


def test_tensors_are_reduced_in_inference_mode_and_after_it(tmp_path: Path) -> None:
    """Other threads change a round's tensor and its sums, which PyTorch forbids if they were made in that mode."""
    members, elements = names(3), 500

    def work(session: sync.Session) -> list[torch.Tensor]:
        with torch.inference_mode():
            inside, later = (values(session.name, number, elements) for number in range(2))
            session.allreduce(inside)
        session.allreduce(later, async_op=True).wait()
        normal = values(session.name, 2, elements)
        session.allreduce(normal)
        return [inside, later, normal]

    results, _ = run(tmp_path, Plan(0, members, (chain(members),)), work)
    check_exact(results, 3, elements, dict.fromkeys(members, 1.0))


def test_tensors_of_changing_shape(tmp_path: Path) -> None:
    """Members ahead of others must not force their tensor's shape on them."""
    sizes = [5000, 7, 5000, 1, 90_000, 7]

    def work(session: sync.Session) -> list[torch.Tensor]:
        return [session.allreduce(values(session.name, k, size)).tensor for k, size in enumerate(sizes)]

    results, _ = run(tmp_path, PLANS["many roots"], work)
    for k, size in enumerate(sizes):
        expected = torch.stack([values(m, k, size).double() for m in MEMBERS]).mean(0)
        for result in results.values():
            assert (result[k] - expected).abs().max() <= 1e-6  # type: ignore[index]


def test_a_plan_that_one_member_does_not_hold_stays_out_of_force(tmp_path: Path) -> None:
    members = names(3)
    with Controller(tmp_path, Plan(0, members, (chain(members),)), job()) as controller:

        def work(session: sync.Session) -> list[int]:
            epochs = [session.allreduce(torch.ones(10)).epoch]
            if session.name == "m0":
                controller.prepare(Plan(1, members, (star(members, "m1"),)), only=["m0", "m2"])
                controller.await_messages(Held, 2)
            return epochs + [session.allreduce(torch.ones(10)).epoch for _ in range(5)]

        results = run_with(controller, work)
    assert set(map(tuple, results.values())) == {(0,) * 6}  # type: ignore[arg-type]


def test_a_refused_plan_never_comes_into_force_where_it_is_held(tmp_path: Path) -> None:
    """m0 can't reach m2, which epoch 1 needs; m1 goes on holding that plan while the others hold epoch 2 already."""
    members = names(3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()
    with Controller(tmp_path, Plan(0, members, (star(members, "m1"),)), job()) as controller:
        controller.false_rosters = {"m0": {"m2": nowhere}}
        unreachable = Plan(1, members, (star(members, "m0"),))
        other = Plan(2, members, (chain(("m2", "m1", "m0")),))

        def work(session: sync.Session) -> list[int]:
            epochs: list[int] = []

            def rounds() -> None:
                epochs.extend(session.allreduce(torch.ones(10)).epoch for _ in range(3))

            rounds()
            if session.name == "m0":
                with short_timeout(session, 1.0):
                    controller.prepare(unreachable)
                    controller.await_messages(Held, 3)
            in_step.wait(PATIENCE_S)
            rounds()
            if session.name == "m0":
                controller.prepare(other, only=["m0", "m2"])
                controller.await_messages(Held, 5)
            in_step.wait(PATIENCE_S)
            rounds()
            if session.name == "m0":
                controller.prepare(other, only=["m1"])
                controller.await_messages(Held, 6)
            in_step.wait(PATIENCE_S)
            rounds()
            return epochs

        in_step = threading.Barrier(len(members))
        results = run_with(controller, work)
        held = [message for message in controller.received(Held) if isinstance(message, Held)]
    assert [(h.member, h.epoch) for h in held if h.refusal] == [("m0", 1)]
    assert "m2" in next(h.refusal for h in held if h.refusal)
    assert set(map(tuple, results.values())) == {(0,) * 10 + (2,) * 2}  # type: ignore[arg-type]


def test_a_plan_for_others_is_refused(tmp_path: Path) -> None:
    members = names(2)
    with Controller(tmp_path, Plan(0, members, (chain(members),)), job()) as controller:

        def work(session: sync.Session) -> int:
            if session.name == "m0":
                controller.prepare(Plan(1, names(3), (chain(names(3)),)))
                controller.await_messages(Held, 2)
            return [session.allreduce(torch.ones(10)).epoch for _ in range(3)][-1]

        assert set(run_with(controller, work).values()) == {0}
        assert all("other members" in message.refusal for message in controller.received(Held))  # type: ignore[attr-defined]


def test_garbage_does_not_harm_a_round(tmp_path: Path) -> None:
    members, draw = names(3), random.Random(1)
    stop = threading.Event()

    def pester(controller: Controller) -> None:
        controller.await_messages(Hello, len(members))
        beginnings = [
            b"",
            Greeting("m1").pack(bytes(NONCE_BYTES)),
            Greeting("stranger").pack(bytes(NONCE_BYTES)),
            b"GET / HTTP/1.1\r\n",
        ]
        while not stop.is_set():
            address = draw.choice(list(controller.roster.values()))
            # Refused, or closed while we write: both are right.
            with suppress(OSError), socket.create_connection(address) as connection:
                connection.sendall(draw.choice(beginnings) + draw.randbytes(draw.randint(0, 3000)))

    with Controller(tmp_path, Plan(0, members, (chain(members),), 1024), job()) as controller:
        thread = threading.Thread(target=pester, args=(controller,))
        thread.start()
        weights = dict.fromkeys(members, 1.0)
        results = run_with(controller, reducing(30, 5000, weights))
        stop.set()
        thread.join()
    check_exact(results, 30, 5000, weights)


def test_stop_ends_a_blocked_round(tmp_path: Path) -> None:
    members = names(2)
    with Controller(tmp_path, Plan(0, members, (chain(members),)), job()) as controller:

        def work(session: sync.Session) -> str:
            if session.name == "m1":
                controller.stop("m0", "interrupted")
                controller.await_messages(Goodbye, 1)
                return ""
            with pytest.raises(sync.Stopped, match="interrupted") as caught:
                session.allreduce(torch.ones(10))
            return str(caught.value)

        assert run_with(controller, work)["m0"] == "interrupted"


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"confirm","epoch":-1}\n',
        b'{"kind":"dance"}\n',
        b'{"kind":"prepare","plan":{"epoch":[]}}\n',
        b'{"kind":"prepare","plan":{"a":' + b"[" * 100_000 + b"\n",
    ],
)
def test_what_the_controller_says_that_is_no_message_ends_the_member_and_is_told(tmp_path: Path, line: bytes) -> None:
    members = names(2)
    with Controller(tmp_path, Plan(0, members, (chain(members),)), job()) as controller:

        def work(session: sync.Session) -> None:
            if session.name == "m1":
                controller.send_line("m0", line)
                controller.await_messages(Goodbye, 1)
                return
            with pytest.raises(sync.SyncError) as caught:
                session.allreduce(torch.ones(10))
            assert caught.value.rule == "controller"
            raise Unfinished("as it must")

        with pytest.raises(Unfinished):
            run_with(controller, work)
        assert [its.error for its in controller.goodbyes() if its.member == "m0"] == ["Unfinished: as it must"]


class Unfinished(Exception):
    """The error of a member that could not go on."""


def test_a_member_that_could_not_join_stops_listening(tmp_path: Path) -> None:
    with Controller(tmp_path, Plan(0, names(2), (star(names(2), "m0"),)), job()) as controller:
        with pytest.raises(sync.SyncError) as failure:
            sync.join(controller.address, "m0", "127.0.0.1", timeout=0.3)
        assert failure.value.rule == "timeout"
        controller.await_messages(Hello, 1)
        with pytest.raises(ConnectionRefusedError):  # although the error's traceback still refers to the listener
            socket.create_connection(controller.roster["m0"])
        assert failure.tb is not None


def test_a_peer_that_leaves_is_named(tmp_path: Path) -> None:
    members = names(3)

    def work(session: sync.Session) -> str:
        session.allreduce(torch.ones(10))
        if session.name == "m2":
            return ""
        with pytest.raises(sync.SyncError) as caught:
            session.allreduce(torch.ones(10))
        assert (caught.value.member, caught.value.round, caught.value.epoch) == ("m2", 2, 4)
        return str(caught.value)

    run(tmp_path, Plan(4, members, (star(members, "m2"),)), work)


@pytest.mark.parametrize("error", [False, True])
def test_a_member_closes_its_line_after_the_controller_did(tmp_path: Path, error: bool) -> None:
    """If the member closed the connection earlier, a message of the controller would fail, and the Goodbye be lost."""
    plan = Plan(0, names(1), (chain(names(1)),))
    closed: list[str] = []
    early = threading.Event()  # a member that does not wait would be first within this time
    with Controller(tmp_path, plan, job()) as controller:
        controller.at_goodbye = lambda member: closed.append("member" if early.wait(0.3) else "controller")
        with suppress(KeyError), sync.join(controller.address, "m0", "127.0.0.1", timeout=PATIENCE_S) as session:
            close = session._connection.close
            session._connection.close = lambda: (early.set(), close())
            if error:
                raise KeyError("a mistake")
        assert closed == ["controller"] and early.is_set()
        assert [bool(goodbye.error) for goodbye in controller.goodbyes()] == [error]


def test_a_member_that_leaves_waits_for_the_thread_that_prepares_a_plan(tmp_path: Path) -> None:
    plan = Plan(0, names(1), (chain(names(1)),))
    with Controller(tmp_path, plan, job()) as controller:
        with sync.join(controller.address, "m0", "127.0.0.1", timeout=PATIENCE_S) as session:
            engine, begun, closed = session._engine, threading.Event(), threading.Event()
            close = engine.close
            engine.hold = lambda plan: (begun.set(), closed.wait(PATIENCE_S))  # as one whose next hop is far away
            engine.close = lambda: (close(), closed.set())
            controller.prepare(replace(plan, epoch=1))
            assert begun.wait(PATIENCE_S)
            (holding,) = [thread for thread in threading.enumerate() if thread.name == "hold 1"]
        assert not holding.is_alive()


def test_a_silent_peer_is_named_when_time_is_out(tmp_path: Path) -> None:
    members = names(3)
    over = threading.Barrier(3)

    def work(session: sync.Session) -> None:
        session.allreduce(torch.ones(10))
        if session.name != "m1":
            with short_timeout(session, 0.5), pytest.raises(sync.SyncError) as caught:
                session.allreduce(torch.ones(10))
            error, awaited = caught.value, "m1" if session.name == "m0" else "m0"
            assert (error.rule, error.member, error.round, error.epoch) == ("timeout", awaited, 2, 0)
        over.wait()

    plan = Plan(0, members, (star(members, "m0"),))
    run(tmp_path, plan, work)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(0),
        torch.ones(3, dtype=torch.int64),
        torch.ones(4, 4).t()[:, :2],
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
    ],
    ids=["empty", "int", "view", "another device", "sparse"],
)
def test_tensors_that_cannot_be_reduced(tmp_path: Path, tensor: torch.Tensor) -> None:
    def work(session: sync.Session) -> None:
        with pytest.raises(ValueError):
            session.allreduce(tensor)

    run(tmp_path, PLANS["alone"], work)


def test_a_residual_of_another_tensor_is_refused_before_the_round_begins(tmp_path: Path) -> None:
    def work(session: sync.Session) -> int:
        residual = sync.Residual()
        residual.restore(torch.zeros(3))
        with pytest.raises(ValueError):
            session.allreduce(torch.ones(4), 1.0, residual)
        with pytest.raises(ValueError):
            session.allreduce(torch.ones(4), 1.0, residual, async_op=True).wait()
        return session.allreduce(torch.ones(4), 1.0, sync.Residual()).round

    members = names(2)
    results, _ = run(tmp_path, Plan(0, members, (chain(members),), codec="int8"), work)
    assert results == dict.fromkeys(members, 1)


def test_reports_name_the_peers_that_were_waited_for_and_the_paths_figures(tmp_path: Path) -> None:
    members = names(3)
    plan = Plan(0, members, (chain(members),))
    _, controller = run(tmp_path, plan, reducing(3, 100_000, dict.fromkeys(members, 1.0)))
    middle = [report for report in controller.reports() if report.member == "m1"]
    assert all(set(report.waited) == {"m0", "m2"} for report in middle)
    assert all(report.sent_bytes > 800_000 and report.received_bytes > 800_000 for report in middle)
    samples = [sample for report in middle for sample in report.peers]
    assert {sample.peer for sample in samples} == {"m0", "m2"}
    assert all(0 < sample.rtt_s < 1 for sample in samples)


def test_the_deprecated_names_work_and_say_the_new_ones(tmp_path: Path) -> None:
    members = names(2)

    def member(name: str) -> float:
        with sync.join(controller.address, name, "127.0.0.1", patience_s=PATIENCE_S) as session:
            return session.allreduce_later(torch.full((4,), float(name[1:]))).wait().tensor.mean().item()

    with (
        pytest.warns(DeprecationWarning) as warned,
        Controller(tmp_path, Plan(0, members, (chain(members),)), job()) as controller,
        ThreadPoolExecutor(2) as pool,
    ):
        assert list(pool.map(member, members)) == [0.5, 0.5]
    said = [str(warning.message) for warning in warned]
    assert sum("write timeout" in text for text in said) == sum("async_op=True" in text for text in said) == 2


def test_an_asynchronous_round_is_a_work(tmp_path: Path) -> None:
    def work(session: sync.Session) -> tuple[float, int]:
        result = session.allreduce(torch.full((4,), float(session.name[1:])), async_op=True)
        assert isinstance(result, sync.Work)
        return result.wait().tensor.mean().item(), session.rounds

    members = names(2)
    results, _ = run(tmp_path, Plan(0, members, (chain(members),)), work)
    assert results == dict.fromkeys(members, (0.5, 1))


def reductions(rounds: int, way: str) -> Work:
    """Return a member's work: rounds by codecs (`way` is "coded"), beside one another ("overlapping"), or plain."""

    def work(session: sync.Session) -> None:
        residual = sync.Residual() if way == "coded" else None
        begun: list[sync.Work[sync.RoundResult]] = []
        for number in range(rounds):
            begun.append(session.allreduce(values(session.name, number, 3000), 1.0, residual, async_op=True))
            if way != "overlapping" or number % 2:
                for each in begun:
                    each.wait()
                begun.clear()

    return work


@pytest.mark.parametrize("way", ["plain", "overlapping", "coded", "elastic"])
def test_a_round_leaves_nothing_for_the_garbage_collector(tmp_path: Path, way: str) -> None:
    """A finished round frees all that it allocated: otherwise a worker's memory grows between two collections."""
    members = names(3)
    plan = Plan(0, members, (chain(members),), 4096, codec="int8" if way == "coded" else "fp32")

    def objects() -> Counter[str]:
        types = [type(each) for each in gc.get_objects()]
        rooms = "testbed.sync", "torch"  # of a class that describes its instances' module, the module is no text
        return Counter(each.__qualname__ for each in types if str(each.__module__).startswith(rooms))

    def left(rounds: int) -> Counter[str]:
        folder = tmp_path / str(rounds)
        folder.mkdir()
        with Controller(folder, plan, job()) as controller:
            controller.lease_s = 1.0 if way == "elastic" else 0.0
            run_with(controller, reductions(rounds, way))
        return objects()

    gc.collect()
    gc.disable()
    try:
        before, few, many = objects(), left(4), left(34)
    finally:
        gc.enable()
    assert {name: count for name, count in (many - few - few).items() if count >= 30} == {}
    kept = (many - before).keys() & {"Round", "Reduction", "ChunkReduction", "Sums"}
    assert not kept, "a closed group keeps its rounds"


@pytest.mark.parametrize("lease_s", [0.0, 30.0], ids=["static", "elastic"])
def test_a_member_that_can_not_begin_says_why_and_leaves_nothing_open(tmp_path: Path, lease_s: float) -> None:
    members = names(2)
    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), job(congestion="none_such")) as controller:
        controller.lease_s = lease_s

        def join(member: str) -> None:
            with pytest.raises(sync.SyncError) as caught:
                sync.join(controller.address, member, "127.0.0.1", timeout=PATIENCE_S)
            assert caught.value.field == "congestion"

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(join, members))
        controller.await_messages(Goodbye, 2)
        assert all("none_such" in goodbye.error for goodbye in controller.goodbyes())
        for address in controller.roster.values():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, PATIENCE_S)


@pytest.mark.parametrize(
    ("refused", "lease_s"), [(", 0.1", 0.0), ("accept", 0.0), (": progress", 0.0), ("control", 0.0), ("control", 30.0)]
)
def test_a_member_that_no_thread_can_be_started_for_leaves_none(
    refused: str, lease_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {*threading.enumerate()}

    def left() -> list[str]:
        """Return the names of threads, without those that have no name of their own, as the controller's."""
        begun = (thread.name for thread in threading.enumerate() if thread not in before)
        return [name for name in begun if not name.startswith("Thread")]

    members, settings = names(2), job(round_timeout_s=2 * PATIENCE_S, streams=2)
    refuse_threads(monkeypatch, refused)
    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), settings) as controller:
        controller.lease_s = lease_s
        with pytest.raises(sync.SyncError):
            run_with(controller, lambda session: None)
        controller.await_messages(Goodbye, 2)
        assert all(refused in goodbye.error for goodbye in controller.goodbyes())
    until(lambda: not left(), lambda: str(left()))


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (lambda session, net, opt: session.gradients(net, opt, powersgd=sync.PowerSgd(1)), "powersgd"),
        (lambda session, net, opt: session.diloco(net, opt, 4, delay=1), "delay"),
    ],
)
def test_a_strategy_under_which_nobody_can_join_is_refused_in_an_elastic_run(
    tmp_path: Path, strategy: Callable[..., sync.Strategy], says: str
) -> None:
    def work(session: sync.Session) -> str:
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(ValueError) as caught:
            session.share(model=net, strategy=strategy(session, net, optimizer))
        session.share(model=net, strategy=session.local_sgd(net, optimizer))
        return str(caught.value)

    members = names(2)
    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), job()) as controller:
        controller.lease_s = 30.0
        assert all(f"leave out `{says}`" in said for said in run_with(controller, work).values())


def test_a_report_refuses_figures_for_which_the_controller_would_exclude_the_member(tmp_path: Path) -> None:
    def work(session: sync.Session) -> None:
        for name, value in {"compute_s": -0.1, "paced_s": float("nan"), "late_s": float("inf"), "steps": -1}.items():
            with pytest.raises(ValueError) as caught:
                session.report(**{name: value})  # type: ignore[arg-type]
            assert name in str(caught.value)

    members = names(2)
    run(tmp_path, Plan(0, members, (star(members, "m0"),)), work)


def test_the_hook_of_many_rounds_a_step_is_refused_in_an_elastic_run(tmp_path: Path) -> None:
    def work(session: sync.Session) -> str:
        with pytest.raises(ValueError) as caught:
            _ = session.ddp_hook
        return str(caught.value)

    members = names(2)
    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), job()) as controller:
        controller.lease_s = 30.0
        assert all("session.gradients" in said for said in run_with(controller, work).values())
