"""Models, data, optimizers, batches: what a worker computes."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from testbed.spec.train import TrainSection
from testbed.worker import data, learner, models, optimizer
from tests.worker.test_worker import write_digits
from tests.worker.workloads import workload

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("name", "classes", "least", "most"),
    [("cnn", 10, 151_306, 151_306), ("svm", 10, 650, 650), ("gpt-small", 103, 0.1e6, 0.13e6),
     ("gpt", 103, 0.8e6, 0.85e6), ("gpt-medium", 103, 2.6e6, 2.8e6)],
)  # fmt: skip
def test_models_have_the_size_they_say(name: str, classes: int, least: float, most: float) -> None:
    model = models.build(name, classes, 64, seed=1)
    assert least <= sum(parameter.numel() for parameter in model.parameters()) <= most


@pytest.mark.parametrize("name", ["gpt-small", "gpt", "gpt-medium"])
@pytest.mark.parametrize(("dataset", "classes"), [("text", 103), ("documentation", data.DOCUMENTATION_CHARACTERS)])
@pytest.mark.parametrize("rank", [None, 4])
def test_a_round_is_planned_for_as_many_parameters_as_learn(
    name: str, dataset: str, classes: int, rank: int | None
) -> None:
    planned = TrainSection.model_validate({"model": name, "dataset": dataset, "rounds": 1, "rank": rank})
    built = models.build(name, classes, data.CONTEXT, 1, rank or 0)
    assert planned.model_bytes == 4 * sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("name", "rank"), [("cnn", None), ("svm", None), *itertools.product(models.GPT_SIZES, [None, 4])]
)
def test_fragments_are_planned_for_as_many_tensors_as_learn(name: str, rank: int | None) -> None:
    planned = TrainSection.model_validate({"model": name, "rounds": 1, "rank": rank})
    assert planned.tensors == len(list(models.build(name, 10, 8, 1, rank or 0).parameters()))


def test_a_synthetic_model_has_as_many_tensors_as_asked_for() -> None:
    views = learner.split(torch.arange(5.0), torch.arange(5.0), 4)
    assert [view.tolist() for view in views] == [[0.0, 1.0], [2.0], [3.0], [4.0]]
    assert all(view.grad is not None and torch.equal(view, view.grad) for view in views)


def test_low_rank_begins_as_the_model_does_and_its_matrices_stay() -> None:
    whole = models.build("gpt-small", 10, 8, seed=3)
    low = models.build("gpt-small", 10, 8, seed=3, rank=4)
    text = torch.arange(8).unsqueeze(0)
    assert torch.equal(whole(text), low(text))
    fixed = [buffer.clone() for buffer in low.buffers()]
    values, gradient = learner.flatten(low)
    assert not learner.hidden_matrices(low)
    low(text).square().sum().backward()
    optimizer.make("sgd", 0.1).step(values, gradient)
    assert not torch.equal(whole(text), low(text))
    assert len(fixed) == 8 and all(torch.equal(a, b) for a, b in zip(fixed, low.buffers(), strict=True))


def test_the_loss_of_an_svm_adds_the_margins_of_all_other_classes() -> None:
    model = models.Svm(3)
    nn.init.zeros_(model.plane.weight)
    loss = models.loss(model, torch.tensor([[0.0, 0.5, 0.2]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(((1 + 0.5) + (1 + 0.2)) / 3)


@pytest.mark.parametrize("name", ["cnn", "gpt-small"])
def test_weights_follow_from_the_seed(name: str) -> None:
    one, same, other = (learner.flatten(models.build(name, 10, 64, seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_a_text_model_does_not_look_ahead() -> None:
    model = models.build("gpt-small", 10, 8, seed=0)
    text = torch.arange(8).unsqueeze(0)
    changed = text.clone()
    changed[0, 5] = 9
    same = (model(text) == model(changed)).all(-1)[0]
    assert same[:5].all() and not same[5:].any()


def test_flat_gradients_are_the_models_own() -> None:
    model = models.build("cnn", 10, 0, seed=0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    values, gradient = learner.flatten(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model(torch.rand(3, 1, 8, 8)).square().sum().backward()
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    values.zero_()
    assert not any(parameter.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "theirs"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimizers_step_as_pytorchs_do(name: str, theirs: type[torch.optim.Optimizer]) -> None:
    draw = torch.Generator().manual_seed(1)
    start, gradients = torch.randn(50, generator=draw), torch.randn(20, 50, generator=draw)
    ours, parameter = start.clone(), torch.nn.Parameter(start.clone())
    mine, reference = optimizer.make(name, 0.01), theirs([parameter], lr=0.01)  # type: ignore[call-arg]
    for gradient in gradients:
        mine.step(ours, gradient)
        parameter.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(ours, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_muon_steps_as_pytorchs_do_and_goes_on_from_its_state() -> None:
    """Muon for the hidden matrices, AdamW for all else: a convolution's filters are a matrix."""
    model = models.build("cnn", 10, 0, seed=0)
    reference = models.build("cnn", 10, 0, seed=0)
    values, gradient = learner.flatten(model)
    matrices = learner.hidden_matrices(model)
    assert [(its.rows, its.columns) for its in matrices] == [(32, 9), (64, 288), (128, 1024)]
    hidden = [layer.weight for layer in reference.modules() if isinstance(layer, nn.Linear | nn.Conv2d)][:-1]
    others = [p for p in reference.parameters() if all(p is not one for one in hidden)]
    held = [nn.Parameter(weight.detach().view(len(weight), -1)) for weight in hidden]
    muon, adamw = torch.optim.Muon(held, lr=0.01, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(others, lr=0.01)
    ours = optimizer.Muon(0.01, matrices, torch.bfloat16)
    for number in range(6):
        if number == 3:
            state = ours.state_dict()
            ours = optimizer.Muon(0.01, matrices, torch.bfloat16)
            ours.load_state_dict(state)
        gradient.copy_(torch.randn(len(gradient), generator=torch.Generator().manual_seed(number)))
        parts = gradient.split([p.numel() for p in reference.parameters()])
        for parameter, part in zip(reference.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()
        for one, weight in zip(held, hidden, strict=True):
            assert weight.grad is not None
            one.grad = weight.grad.view_as(one)
        ours.step(values, gradient)
        muon.step()
        adamw.step()
        expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
        torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 8), (16, 64), (64, 16)])
def test_on_a_cpu_muon_makes_matrices_orthogonal_in_float32(shape: tuple[int, int]) -> None:
    """The singular vectors stay and the singular values are near 1, as far as five iterations bring them."""
    rows, columns = shape
    gradient = torch.randn(rows * columns, generator=torch.Generator().manual_seed(1))
    values = torch.zeros(rows * columns)
    left, _, right = torch.linalg.svd(gradient.view(shape), full_matrices=False)
    optimizer.make("muon", 1.0, [optimizer.Matrix(0, rows, columns)]).step(values, gradient)
    step = -values.view(shape) / (0.2 * max(shape) ** 0.5)
    among = left.T @ step @ right.T
    sizes = among.diagonal()
    torch.testing.assert_close(among, torch.diag(sizes), rtol=0, atol=1e-4)  # bfloat16 is 100 times as far off
    assert sizes.min() > 0.4
    assert sizes.max() < 1.6


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "muon"])
def test_a_learning_rate_that_changes_is_that_of_the_next_step(name: str) -> None:
    """At a rate next to none nothing moves."""
    gradient, matrices = torch.ones(12), [optimizer.Matrix(0, 2, 3)]
    values, one = torch.ones(12), optimizer.make(name, 0.1, matrices)
    one.step(values, gradient)
    before = values.clone()
    assert not torch.equal(before, torch.ones(12))
    one.learn_at(1e-12)
    one.step(values, gradient)
    torch.testing.assert_close(values, before)


def test_muon_has_the_matrices_of_a_transformers_blocks() -> None:
    """Neither what stands for characters and places, nor what makes scores."""
    shapes = {(its.rows, its.columns) for its in learner.hidden_matrices(models.build("gpt-small", 103, 64, 0))}
    assert shapes == {(192, 64), (64, 64), (256, 64), (64, 256)}


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="lion"):
        optimizer.make("lion", 0.1)
    with pytest.raises(ValueError, match="vit"):
        models.build("vit", 10, 8, 0)


def test_batches_use_all_samples_equally_often() -> None:
    endless = learner.batches([3, 5, 7, 11, 13], 2, seed=0)
    used = Counter(itertools.chain.from_iterable(itertools.islice(endless, 50)))
    assert used == dict.fromkeys([3, 5, 7, 11, 13], 20)
    assert len(next(learner.batches([1, 2], 7, seed=0))) == 7


def test_digits_are_split_for_good(tmp_path: Path) -> None:
    write_digits(tmp_path)
    digits = data.digits(tmp_path)
    assert (digits.inputs.shape, digits.test_inputs.shape) == ((160, 1, 8, 8), (40, 1, 8, 8))
    assert digits.labels == digits.targets.tolist()
    whole = {image.numpy().tobytes() for image in (*digits.inputs, *digits.test_inputs)}
    assert len(whole) == 200
    assert torch.equal(digits.inputs, data.digits(tmp_path).inputs)


def test_missing_digits_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"digits\.json"):
        data.digits(tmp_path)


def test_text_is_followed_by_its_own_next_characters() -> None:
    text = data.text(context=16)
    for label in range(10):
        part = [i for i, its in enumerate(text.labels) if its == label]
        assert torch.equal(text.inputs[part].flatten()[1:], text.targets[part].flatten()[:-1])
    assert len(text.test_inputs) / (len(text.inputs) + len(text.test_inputs)) == pytest.approx(0.1, abs=0.01)
    assert text.classes > 90 and sorted(set(text.labels)) == sorted(set(text.test_labels)) == list(range(10))


def test_learning_lowers_the_loss(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model="cnn", batch=16, optimizer="adam", learning_rate=3e-3)
    model = learner.make(work, tmp_path, torch.device("cpu"))
    before = model.evaluate()
    for _ in range(30):
        model.compute()
        model.apply()
    after = model.evaluate()
    assert after["test_loss"] < before["test_loss"] / 2 and after["accuracy"] > 0.8


def test_digests_tell_one_changed_bit(tmp_path: Path) -> None:
    tensor = torch.randn(100)
    before = learner.digest([tensor])
    assert before == learner.digest([tensor.clone()])
    tensor[50] = -tensor[50]
    assert before != learner.digest([tensor])


def documented(folder: Path, text: bytes, sha256: str) -> Path:
    """A folder of data sets with that documentation, said to have a hash."""
    (folder / "documentation").mkdir()
    (folder / "documentation" / "text.txt").write_bytes(text)
    (folder / "documentation" / "documentation.json").write_text(json.dumps({"sha256": sha256}))
    return folder


def test_documentation_is_numbers_of_its_characters(tmp_path: Path) -> None:
    text = b"".join(b"%d: ~ and\n" % number for number in range(10_000))
    found = data.documentation(documented(tmp_path, text, hashlib.sha256(text).hexdigest()), context=8)
    assert (found.classes, found.test_labels) == (96, [label for label in range(10) for _ in range(30)])
    first = found.inputs[:2].flatten()
    assert bytes(10 if number == 0 else number + 31 for number in first.tolist()) == text[:16]
    assert torch.equal(found.inputs[0][1:], found.targets[0][:-1])
    part = len(text) // 10 // 8 * 8
    held = torch.cat([found.inputs[found.labels.index(9) :].flatten(), found.test_inputs[-30:].flatten()])
    assert part - 8 - 1 <= len(held) <= part, "what is held out of a part is not learned from"


def test_documentation_that_is_missing_or_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`make documentation`"):
        data.documentation(tmp_path)
    with pytest.raises(ValueError):
        data.documentation(documented(tmp_path, b"another text", "ab"))


def test_a_learner_reads_the_documentation_that_its_workload_names(tmp_path: Path) -> None:
    text = bytes(range(32, 127)) * 800
    folder = documented(tmp_path, text, hashlib.sha256(text).hexdigest())
    work = workload(model="gpt-small", dataset="documentation", rank=2, batch=2)
    model = learner.make(work, folder, torch.device("cpu"))
    assert model.gradient.numel() == 22_784 - 1_024 and "loss" in model.compute()


@pytest.mark.parametrize("model", ["svm", "synthetic"])
def test_a_member_that_joins_again_goes_on_with_its_next_batch(model: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model=model, batch=8, parameters=10)
    whole, again = (learner.make(work, tmp_path, torch.device("cpu")) for _ in range(2))
    for _ in range(4):
        whole.compute()
    again.skip(3)
    again.compute()
    assert torch.equal(whole.gradient, again.gradient)
