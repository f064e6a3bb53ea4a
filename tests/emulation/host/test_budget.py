"""The demands of an experiment on its host, the text when they are too high, and one real measurement."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from decimal import ROUND_DOWN, ROUND_UP
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from testbed.cli import CANNOT, app
from testbed.emulation import label
from testbed.emulation.host import budget
from testbed.emulation.host.budget import BATCH, USABLE, Budget, Need, host_budget, need
from testbed.emulation.shaping import available_backends
from testbed.emulation.testbed import Testbed
from testbed.spec.experiment import Experiment
from testbed.spec.train import PARAMETERS
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write

HOST = Budget("this one", 1e9, {"cnn": 0.01, "gpt-small": 0.02, "gpt": 0.1}, 2, time.time(), 0.0)


def load(folder: Path, experiment: dict[str, Any] = EXPERIMENT, topology: dict[str, Any] = TOPOLOGY) -> Experiment:
    return Experiment.load(write(folder, topology, experiment))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a budget is kept while this test goes on."""
    path = tmp_path / "kept" / "budget.json"
    monkeypatch.setattr(budget, "KEPT", path)
    return path


# Need -------------------------------------------------------------------------------------------------------------


@pytest.mark.pure
def test_every_link_counts_both_ways_at_its_highest_rate(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,rate_mbps\n0,10\n1,70\n2,20\n")
    traced = spoilt(TOPOLOGY, "links", 0, "forward", to={"trace": {"file": "trace.csv"}})
    assert need(load(tmp_path), HOST).bits_per_second == 2 * (50e6 + 80e6)
    assert need(load(tmp_path, topology=traced), HOST).bits_per_second == 70e6 + 50e6 + 2 * 80e6
    assert need(load(tmp_path, EXPERIMENT | {"scale": 0.1}, traced), HOST).bits_per_second == pytest.approx(28e6)


@pytest.mark.pure
def test_a_row_without_a_rate_has_the_link_s_own(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,rate_mbps,delay_ms\n0,,50\n1,5,60\n2,,50\n")
    traced = spoilt(TOPOLOGY, "links", 0, "forward", to={"trace": {"file": "trace.csv"}})
    assert need(load(tmp_path, topology=traced), HOST).bits_per_second == 2 * (50e6 + 80e6)


@pytest.mark.pure
def test_a_network_to_swap_to_and_a_rate_to_change_to_count_too(tmp_path: Path) -> None:
    wider = spoilt(TOPOLOGY, "links", 0, "rate", to="500mbit")
    (tmp_path / "wider.yaml").write_text(yaml.safe_dump(wider))
    events: list[dict[str, Any]] = [{"at": "1s", "change": {"link": "paris->tokyo", "rate": "100mbit"}}]
    changed = load(tmp_path, EXPERIMENT | {"scale": 0.5, "events": events})
    assert need(changed, HOST).bits_per_second == (100e6 + 50e6 + 2 * 80e6) / 2
    events += [{"at": "2s", "change": {"link": "tokyo->paris", "rate": "1mbit"}}, {"at": "3s", "swap": "wider.yaml"}]
    swapped = load(tmp_path, EXPERIMENT | {"events": events})
    assert need(swapped, HOST).bits_per_second == 2 * (500e6 + 80e6)


@pytest.mark.pure
def test_workers_that_compute_count_by_model_batch_and_speed(tmp_path: Path) -> None:
    paced = EXPERIMENT | {"compute": {"step_time": "50ms"}}
    assert need(load(tmp_path), HOST).cores == 0, "without a declared step time nothing is promised"
    assert need(load(tmp_path, paced), HOST).cores == pytest.approx(4 * 0.01 / 0.05)
    twice = spoilt(paced, "train", "batch", to=2 * BATCH)
    fast = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=3)
    assert need(load(tmp_path, twice, fast), HOST).cores == pytest.approx((3 + 3) * 0.02 / 0.05)


@pytest.mark.pure
@pytest.mark.parametrize("model", ["gpt-small", "gpt", "gpt-medium"])
def test_every_model_costs_something_the_larger_the_more(tmp_path: Path, model: str) -> None:
    paced = spoilt(EXPERIMENT | {"compute": {"step_time": "1s"}}, "train", "model", to=model)
    expected = {"gpt-small": 0.02, "gpt": 0.1, "gpt-medium": 0.1 * PARAMETERS["gpt-medium"] / PARAMETERS["gpt"]}
    assert need(load(tmp_path, paced), HOST).cores == pytest.approx(4 * expected[model])


# Excess -----------------------------------------------------------------------------------------------------------


@pytest.mark.pure
def test_what_fits_is_not_in_excess() -> None:
    assert Need(1e9 * USABLE, 2.0).excess(HOST, 1.0) is None


@pytest.mark.pure
def test_every_shortage_is_named() -> None:
    rate, cores = Need(1e10, 0), Need(0, 7)
    assert "0.037" in str(rate.excess(HOST, 0.5))
    assert "3.5" in str(cores.excess(HOST, 0.5))
    both = str(Need(1e10, 7).excess(HOST, 0.5))
    assert str(rate.excess(HOST, 0.5)) in both
    assert str(cores.excess(HOST, 0.5)) in both


@pytest.mark.pure
@given(st.floats(1e-6, 1e6))
def test_two_digits_are_at_most_a_tenth_off_on_the_side_that_fits(value: float) -> None:
    down, up = budget._two_digits(value, ROUND_DOWN), budget._two_digits(value, ROUND_UP)
    assert 0.9 * value < down <= value <= up < 1.11 * value
    assert float(f"{down:.1e}") == down
    assert float(f"{up:.1e}") == up


# What is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.local
def test_a_budget_is_this_hosts_and_one_backends(kept: Path) -> None:
    assert host_budget("netem") is None
    kept.parent.mkdir()
    ours = replace(HOST, key=budget._key("netem"))
    kept.write_text(json.dumps(asdict(ours)))
    assert host_budget("netem") == ours
    assert host_budget("userspace") is None
    kept.write_text(json.dumps(asdict(HOST)))
    assert host_budget("netem") is None, "another host's"


@pytest.mark.local
def test_a_budget_that_is_old_or_contradicted_is_measured_again(kept: Path) -> None:
    kept.parent.mkdir()
    ours = replace(HOST, key=budget._key("netem"))
    kept.write_text(json.dumps(asdict(replace(ours, measured_s=time.time() - budget.OLD_S - 1))))
    assert host_budget("netem") is None
    kept.write_text(json.dumps(asdict(ours)))
    assert host_budget("netem") == ours
    kept.write_text(json.dumps(asdict(replace(ours, measured_s=time.time() - budget.FRESH_S - 1))))
    assert host_budget("netem") is not None
    budget.contradict()
    budget.contradict()
    assert host_budget("netem") is None


@pytest.mark.local
def test_a_budget_that_was_just_measured_is_not_measured_again_for_what_others_took(kept: Path) -> None:
    """Where runs are beside other work, each would begin with a trial that takes all that the others have."""
    kept.parent.mkdir()
    ours = replace(HOST, key=budget._key("netem"), measured_s=time.time() - budget.FRESH_S / 2)
    kept.write_text(json.dumps(asdict(ours)))
    budget.contradict()
    assert host_budget("netem") == ours


@pytest.mark.pure
def test_a_budget_says_when_and_beside_what_it_was_measured() -> None:
    quiet, busy = replace(HOST, measured_s=0.0, beside=0.05), replace(HOST, measured_s=0.0, beside=0.4)
    assert "January 1970" in str(quiet) and "%" not in str(quiet)
    assert "40%" in str(busy)


@pytest.mark.pure
@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "x"}', '"x"'])
def test_a_broken_record_counts_as_missing(kept: Path, text: str) -> None:
    kept.parent.mkdir()
    kept.write_text(text)
    assert host_budget("netem") is None


@pytest.mark.local
def test_a_budget_that_cannot_be_kept_or_dropped_ends_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LOOK_S", 0.0)
    monkeypatch.setattr(budget, "_carry", lambda *_: 1e9)
    monkeypatch.setattr(budget, "_step_seconds", lambda: {"cnn": 0.01})
    kept.mkdir(parents=True)  # in the place of the file
    assert budget.measure_budget("netem").bits_per_second == 1e9
    budget.contradict()
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.system
def test_where_this_environment_has_no_pytorch_steps_are_measured_in_the_worker_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a wheel with the extra `emulate` alone."""
    monkeypatch.setattr(budget, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None)))
    monkeypatch.setattr(budget, "subprocess", None)
    found = budget._step_seconds()
    assert found.keys() <= PARAMETERS.keys() and found and all(seconds > 0 for seconds in found.values())


@pytest.mark.pure
def test_an_image_that_is_built_to_measure_steps_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The findings of `doctor --fix --json` go to standard output."""

    def build(_: object, progress: Callable[[str], None] = print) -> str:
        progress("building worker image")
        return "testbed-worker"

    monkeypatch.setattr(budget, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None)))
    monkeypatch.setattr(budget, "engine", SimpleNamespace(connect=lambda: None))
    monkeypatch.setattr(budget, "ensure_worker_image", build)
    monkeypatch.setattr(budget, "python_output", lambda *_: b'{"cnn": 0.01}')
    assert budget._step_seconds() == {"cnn": 0.01}
    assert capsys.readouterr().out == ""


@pytest.mark.physics
def test_this_host_is_measured_and_the_figure_kept(kept: Path) -> None:
    backend = next(name for name, complaint in available_backends().items() if complaint is None)
    found = budget.measure_budget(backend)
    assert 30e6 < found.bits_per_second < 100e9
    assert found.cores == os.cpu_count()
    assert found.step_seconds.keys() <= PARAMETERS.keys()
    assert all(1e-4 < seconds < 60 for seconds in found.step_seconds.values())
    assert 0 <= found.beside <= 1
    assert host_budget(backend) == found
    assert list(kept.parent.iterdir()) == [kept]
    assert f"budget-{os.getpid()}" not in label.networks()


@pytest.mark.tour
@pytest.mark.system
def test_a_strict_run_far_above_the_budget_is_refused_before_anything_is_built(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = next(name for name, complaint in available_backends().items() if complaint is None)
    kept.parent.mkdir()
    small = replace(HOST, key=budget._key(backend), bits_per_second=20e6)
    kept.write_text(json.dumps(asdict(small)))
    monkeypatch.chdir(tmp_path)
    built: list[object] = []
    monkeypatch.setattr(Testbed, "build", built.append)
    file = write(tmp_path)
    result = CliRunner().invoke(app, ["run", str(file), "--strict"])
    assert result.exit_code == CANNOT == 3, result.output
    assert built == []
    scale = result.stderr.partition("a scale of ")[2].partition(" would fit")[0]
    fitting = Experiment.load(file, {"scale": scale})
    assert need(fitting, small).excess(small, fitting.spec.scale) is None
