"""Metrics in the lines that programs print."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.printed_metrics import LONGEST_LINE, Figures, figures_in
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.pure

NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("step=3 loss=0.25 lr=1e-3", Figures({"loss": 0.25, "lr": 1e-3}, 3)),
        ("epoch 1: loss=2, acc=0.5", Figures({"loss": 2.0, "acc": 0.5})),
        ('{"global_step": 7, "loss": 1, "name": "x", "done": true}', Figures({"loss": 1.0}, 7)),
        ("train/loss=4.5", Figures({"train/loss": 4.5})),
        ("loss=nan", None),
        ("took=12.3.4 seed==3 a=b", None),
        ("step=3", None),
        ("{broken", None),
        ("nothing", None),
    ],
)
def test_what_a_line_says(line: str, figures: Figures | None) -> None:
    assert figures_in(line) == figures


#: Lines of the most used training programs, as they print them.
LOGS = {
    "transformers": (
        "{'loss': 2.31, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.02}",
        Figures({"loss": 2.31, "grad_norm": 1.25, "learning_rate": 5e-05, "epoch": 0.02}),
    ),
    "transformers 5": ("{'loss': '2.31', 'epoch': '0.02'}", Figures({"loss": 2.31, "epoch": 0.02})),
    "a logger": ("[2026-01-01 12:00:00,123][INFO] {'loss': np.float64(2.5), 'step': 5}", Figures({"loss": 2.5}, 5)),
    "PyTorch's quickstart": ("loss: 2.303494  [   64/60000]", Figures({"loss": 2.303494})),
    "its test": (" Accuracy: 65.1%, Avg loss: 1.081", Figures({"Accuracy": 65.1, "Avg loss": 1.081})),
    "MNIST": ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300039", Figures({"Loss": 2.300039})),
    "MNIST's test": ("Test set: Average loss: 0.0573, Accuracy: 9812/10000 (98%)", Figures({"Average loss": 0.0573})),
    "ImageNet": (
        "Epoch: [0][ 10/50]\tTime  0.5 ( 0.6)\tLoss 6.99e+00 (7.0e+00)\tAcc@1   0.25 (  0.1)",
        Figures({"Loss": 6.99, "Acc@1": 0.25}),
    ),
    "a word language model": (
        "| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 15.63 | loss  8.12 | ppl  3363.43",
        Figures({"epoch": 1.0, "lr": 5.0, "ms/batch": 15.63, "loss": 8.12, "ppl": 3363.43}),
    ),
    "fairseq": ("| loss 3.21 | wps 1,234 |", Figures({"loss": 3.21, "wps": 1234.0})),
    "Megatron": (
        " iteration       10/     100 | consumed samples:   160 | lm loss: 9.500E+00 | grad norm: 5.200 |",
        Figures({"consumed samples": 160.0, "lm loss": 9.5, "grad norm": 5.2}, 10),
    ),
    "Stable-Baselines": ("|    value_loss        | 0.0112      |", Figures({"value_loss": 0.0112})),
    "nanoGPT": ("iter 1,100: loss 2.4567, time 123.45ms, mfu 3.21%", Figures({"loss": 2.4567, "mfu": 3.21}, 1100)),
    "nanoGPT's test": (
        "step 250: train loss 2.45, val loss 2.51",
        Figures({"train loss": 2.45, "val loss": 2.51}, 250),
    ),
    "Keras": ("100/100 - 1s - loss: 0.3 - accuracy: 0.91", Figures({"loss": 0.3, "accuracy": 0.91})),
    "tqdm": (
        "epoch 0:   8%|▊         | 1/13 [00:03<00:45,  3.75s/it, loss=0.7306]",
        Figures({"loss": 0.7306}, count=1),
    ),
    "tqdm with a step": (
        "50%|█████     | 1/2 [00:03<00:45, loss=0.7306, step=40]",
        Figures({"loss": 0.7306}, 40, count=1),
    ),
    "Lightning": (
        "Epoch 0: 100%|██| 1875/1875 [00:10<00:00, 180.0it/s, loss=0.3, v_num=0]",
        Figures({"loss": 0.3}, count=1875),
    ),
    "a tensor": ("step=10/20 loss=tensor(2.31, grad_fn=<NllLossBackward0>)", Figures({"loss": 2.31}, 10)),
    "DeepSpeed": (
        "[2026-01-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001, 0.001], "
        "mom=[(0.9, 0.999), (0.9, 0.999)]",
        Figures({"skipped": 0.0, "lr": 0.001}, 10),
    ),
    "DeepSpeed's timer": (
        "[INFO] [timer.py:260:stop] epoch=0/global_step=10, CurrSamplesPerSec=12.5, MemAllocated=1.2GB",
        Figures({"epoch": 0.0, "CurrSamplesPerSec": 12.5}),
    ),
    "a colour": ("\x1b[32mstep 5\x1b[0m loss=\x1b[1m0.5\x1b[0m", Figures({"loss": 0.5}, 5)),
}


@pytest.mark.parametrize("log", list(LOGS))
def test_the_log_lines_of_what_trains_most_are_read(log: str) -> None:
    line, figures = LOGS[log]
    assert figures_in(line) == figures


@given(value=st.integers(0, 10**9), fraction=st.integers(0, 999), separator=st.sampled_from([",", "_", ""]))
def test_thousands_separators_are_read(value: int, fraction: int, separator: str) -> None:
    shown = f"{value:{separator}}.{fraction:03}"
    for line in (f"loss={shown}", f"Loss: {shown}", f"| loss {shown} |", f"{{'loss': {shown}}}"):
        figures = figures_in(line)
        assert figures is not None, line
        assert list(figures.values.values()) == [float(f"{value}.{fraction:03}")]


@pytest.mark.parametrize("unit", [" nats", "nats", "it/s", " it/s", " tokens/s", "s", "%", " %", " of 3"])
def test_a_unit_is_not_part_of_a_number(unit: str) -> None:
    for line in (f"loss=4e-1{unit}", f"Loss: 4e-1{unit}", f"val loss 0.4{unit}, lr=0.1", f"loss=0.4{unit} k=3 M=2"):
        figures = figures_in(line)
        assert figures is not None, line
        assert next(iter(figures.values.values())) == 0.4


@pytest.mark.parametrize(("prefix", "factor"), [("k", 1e3), ("K", 1e3), ("M", 1e6)])
@pytest.mark.parametrize("unit", ["", " tokens/s", "tok/s", "/s"])
def test_a_prefix_multiplies_a_number(prefix: str, factor: float, unit: str) -> None:
    for number in (f"1.2{prefix}{unit}", *([f"1.2 {prefix}{unit}"] if unit or prefix != "K" else [])):
        for line in (f"wps={number}", f"wps: {number}", f"wps {number}", f"| wps {number} |", f"| wps | {number} |"):
            assert figures_in(line) == Figures({"wps": 1.2 * factor}), line
        assert figures_in(f"{{'wps': '{number}'}}") == Figures({"wps": 1.2 * factor})


def test_a_k_alone_after_a_number_may_be_kelvin() -> None:
    number = "300 K"
    for line in (f"lr={number}", f"lr: {number}, x", f"lr {number}", f"| lr {number} |", f"| lr | {number} |"):
        assert figures_in(line) is None, line
    assert figures_in(f"{{'lr': '{number}'}}") is None
    assert figures_in(f"temp={number} gpu_temp: 300K Temperature=300K loss=2") == Figures({"loss": 2.0})
    assert figures_in("temp=65.5 C, temperature=300") == Figures({"temp": 65.5, "temperature": 300.0})


@pytest.mark.parametrize("line", ["| loss 2.3 | 1.2k tok/s |", "| loss 2.3 | 40 it/s | acc 91% |", "loss 2.3 | 91%"])
def test_a_cell_with_a_figure_is_not_the_name_of_the_next_one(line: str) -> None:
    figures = figures_in(line)
    assert figures is not None and figures.values["loss"] == 2.3 and "loss 2.3" not in figures.values


@pytest.mark.parametrize("begin", ["ids=[", "lr: [", "{'lr': [", '{"loss": [', "| loss ", "loss=", "shape: "])
@pytest.mark.parametrize("number", ["1012, ", "1012,", "1,012 ", "1012", "0.25, ", "1e3 k, "])
@pytest.mark.parametrize("end", ["...", "x", "]", "/7"])
def test_a_line_of_many_numbers_is_read_at_once(begin: str, number: str, end: str) -> None:
    """The longest line, too: where digits can be read in two ways, ten numbers take two minutes."""
    line = begin + number * ((LONGEST_LINE - len(begin + end)) // len(number)) + end
    began = time.process_time()
    figures_in(line)
    assert time.process_time() - began < PATIENCE_S / 10


def test_an_integer_beyond_every_float_is_left_out() -> None:
    assert figures_in(f'{{"seed_": 1{"0" * 400}, "loss": 2, "done": true}}') == Figures({"loss": 2.0})


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 400])
@pytest.mark.parametrize(
    "line", ["step {} loss=2", "step={} loss=2", "round {}/7 loss: 2", '{{"step": {}, "loss": 2}}']
)
def test_a_step_beyond_every_count_is_left_out(line: str, digits: str) -> None:
    assert figures_in(line.format(digits)) == Figures({"loss": 2.0})


@pytest.mark.parametrize("half", ["\\ud800", "\\udfff"])
def test_a_name_with_half_a_character_is_left_out(half: str) -> None:
    """No metric, page or report could encode it."""
    assert figures_in(f'{{"{half}loss": 1.5, "loss": 2}}') == Figures({"loss": 2.0})


@pytest.mark.parametrize("number", ["1.2GB", "1.2 GB", "950 MiB/s", "3 kbit/s", "1.2G", "1.2kg", "1.5s/it"])
def test_a_number_whose_unit_changes_with_it_is_not_read(number: str) -> None:
    for line in (f"throughput={number}", f"throughput: {number}", f"| throughput {number} |"):
        assert figures_in(line) is None, line


def test_memory_may_count_in_powers_of_two() -> None:
    assert figures_in("MemAllocated=300M gpu_mem=1.2k loss=2.5") == Figures({"loss": 2.5})


@pytest.mark.parametrize("line", ["lr=[0.001, 1e-3]", "lr: [0.001]", "{'lr': [0.001, 0.001]}", '{"lr": [1e-3,1e-3]}'])
def test_a_list_of_equal_numbers_is_one(line: str) -> None:
    assert figures_in(line) == Figures({"lr": 0.001})


@pytest.mark.parametrize("line", ["lr=[0.001, 0.002]", "lr=[5,500]", "shape=[3, 3]", "loss=[nan, nan]", "loss=[]"])
def test_another_list_is_not_read(line: str) -> None:
    assert figures_in(line) is None


@pytest.mark.parametrize(
    "number", ["0,25", "12,34", "1,2345", "1'234", "12.3.4", "3/10", "0x10", "1.2B", "3m", "3m20s"]
)
def test_a_number_that_is_not_known_for_sure_is_not_read(number: str) -> None:
    """Nor is a part of it: a decimal comma would make 0 of 0.25."""
    for line in (f"loss={number}", f"Loss: {number}", f"| loss {number} |", f"{{'loss': {number}}}"):
        assert figures_in(line) is None, line


@pytest.mark.parametrize(
    "line",
    [
        "[W1126 22:30:01.123 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[rank0]:[W1126 22:30:01.123 ProcessGroupNCCL.cpp:4115] using GPU 0 as device. loss=3",
        "[W socket.cpp:601] [c10d] retries=3 delay=0.5",
        "W1126 12:00:00.123000 140 torch/distributed/run.py:766] OMP_NUM_THREADS loss=1.0",
        "paris-w0:33:40 [0] NCCL INFO comm 0x5 rank=0 nranks=2 busId=0",
        "/opt/site/torch/x.py:12: UserWarning: lr=0.1 is large",
        "x.c:3: warning: unused loss=3",
        "connection refused: errno=111 attempt=2 err=-3 error=5",
        "WARNING:urllib3: retry total=3.5",
        "OMP_NUM_THREADS=1 RANK=0 WORLD_SIZE=2 rank=0 local_rank=1 node_id=4 port=29500 pid=33 seed=42",
        "took 3.5 s; listening on port: 29500; error 111; 12:30:45; Downloading: 45.3 MB",
    ],
)
def test_what_libraries_and_launchers_say_is_no_curve(line: str) -> None:
    assert figures_in(line) is None


def test_a_script_that_logs_at_the_level_of_warnings_is_heard() -> None:
    """`logging` prints at this level by default; an error rate has a fraction."""
    assert figures_in("WARNING:root:loss=0.5 tries=3") == Figures({"loss": 0.5})
    assert figures_in("val err=0.25") == Figures({"val err": 0.25})


@given(values=st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=8))
def test_both_forms_say_the_same(values: dict[str, float]) -> None:
    assert figures_in(json.dumps(values)) == figures_in(" ".join(f"{name}={value!r}" for name, value in values.items()))


@given(line=st.text())
def test_any_line_may_be_printed(line: str) -> None:
    figures_in(line)
