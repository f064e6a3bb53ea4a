"""The figures of a command's programs, and what keeps a command from being run."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.emulation.process import ProcessIdentity
from testbed.run.directory import RunDirectory
from testbed.run.programs.experiment_programs import CURVES, MOST_SHOWN, ProgramFigures, check_command
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology
from testbed.telemetry.tensorboard import Scalar, write_scalars

TOPOLOGY = Topology.load(Path(__file__).parents[3] / "topologies/smoke.yaml")


@pytest.mark.local
def test_printed_figures_are_recorded_and_the_last_ones_are_shown(tmp_path: Path) -> None:
    directory = RunDirectory("figures", tmp_path)
    figures = ProgramFigures(directory)
    figures.hear("paris-w0", "nothing of note")
    assert (figures.curves, figures.newest) == ({}, {})
    for step in range(MOST_SHOWN + 1):
        figures.hear("paris-w0", f"step={step} loss={1 / (1 + step)}")
    figures.hear("london-w0", "accuracy: 0.5")
    assert len(figures.curves) == MOST_SHOWN
    assert list(figures.curves)[-1] == str(MOST_SHOWN + 2)
    assert figures.newest == {"loss": 1 / (1 + MOST_SHOWN), "accuracy": 0.5}
    assert len(directory.read(CURVES)) == MOST_SHOWN + 2
    directory.close()


def bar(count: int, loss: float, total: int = 13) -> str:
    return f"epoch 0: {100 * count // total:3}%|▊         | {count}/{total} [00:03<00:45,  3.75s/it, loss={loss:.4f}]"


#: How loops draw a bar: the counts and losses that they show, and the losses that are recorded.
DRAWN = {
    "set, then move": (
        [state for n, loss in enumerate((0.73, 0.7, 0.61)) for state in ((n, loss), (n + 1, loss))],
        [0.73, 0.7, 0.61],
    ),
    "move, then set": ([(1, 0.73), (2, 0.73), (2, 0.7), (3, 0.7), (3, 0.61)], [0.73, 0.7, 0.61]),
    "both at once": ([(1, 0.73), (2, 0.7), (3, 0.61)], [0.73, 0.7, 0.61]),
    "set twice": ([(1, 0.73), (1, 0.7), (2, 0.61)], [0.73, 0.7, 0.61]),
    "the same value": ([(1, 0.5), (2, 0.5), (3, 0.5)], [0.5, 0.5]),
    "the next epoch": ([(12, 0.5), (13, 0.4), (1, 0.4)], [0.5, 0.4, 0.4]),
    "only the ends of epochs": ([(13, 0.7), (13, 0.5), (13, 0.4)], [0.7, 0.5, 0.4]),
}


@pytest.mark.local
@pytest.mark.parametrize("loop", list(DRAWN))
def test_the_same_figures_of_a_progress_bar_are_recorded_once(loop: str, tmp_path: Path) -> None:
    directory = RunDirectory("figures", tmp_path)
    figures = ProgramFigures(directory)
    shown, losses = DRAWN[loop]
    for count, loss in shown:
        for worker in ("paris-w0", "london-w0"):
            figures.hear(worker, bar(count, loss))
    records = [record for record in directory.read(CURVES) if record["program"] == "paris-w0"]
    assert [record["values"]["loss"] for record in records] == losses
    assert len(directory.read(CURVES)) == 2 * len(losses)
    directory.close()


@pytest.mark.local
def test_a_folder_named_as_a_file_of_figures_is_not_read(tmp_path: Path) -> None:
    directory = RunDirectory("figures", tmp_path)
    folder = directory.path / "out/paris-w0/events.out.tfevents.1"
    folder.mkdir(parents=True)
    with (folder / "events.out.tfevents.2").open("wb") as file:
        write_scalars(file, 0.0, [Scalar("loss", 1, 1.0, 0.5)])
    figures = ProgramFigures(directory)
    figures.take("paris-w0", ProcessIdentity.own())  # this process is no container, so that nothing is copied
    assert figures.newest == {"loss": 0.5}
    directory.close()


@pytest.mark.pure
def test_a_torchrun_of_its_own_may_be_on_one_worker() -> None:
    def check(*words: str, workers: list[str] | None = None) -> None:
        check_command(Experiment.of_program(TOPOLOGY, {"command": list(words), "workers": workers}))

    with pytest.raises(SpecError) as caught:
        check("torchrun", "--standalone", "train.py")
    assert caught.value.fields == ("train.command",)
    with pytest.raises(SpecError):
        check("bash", "-c", "torchrun --nnodes=1 x.py", workers=["paris-w0", "paris-w1"])
    check("torchrun", "--standalone", "train.py", workers=["paris-w0"])
    check("torchrun", "train.py", "--standalone")
