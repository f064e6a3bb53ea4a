"""The benchmark of simulation against emulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import simulation

pytestmark = pytest.mark.pure


def test_a_file_without_emulated_cells_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "large", lambda *_: {"sites": 1, "rounds": 1, "seconds": 1.0, "run": ""})
    monkeypatch.setattr(simulation, "fluid_off", lambda *_: 0.0)
    kept = tmp_path / "kept.json"
    assert simulation.main(["--show", "--kept", str(kept), "--json"]) == 0
    assert str(kept) in capsys.readouterr().err
