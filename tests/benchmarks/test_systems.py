"""The figures of a launch's records in `benchmarks.systems`, and its networks' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.support.systems.cells import NETSTORM_SCALE, NETWORKS
from benchmarks.systems import LOSS, Cell, curve_in, figures_of, main, table
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure

SAID = f"""launch in runs/x
west-w0 | {{"step": 0, "at": 100.0, "loss": 4.6}}
east-w0 | TESTBED_SCHEME=diloco: {{}}
west-w0 | {{"step": 32, "at": 110.0, "loss": {LOSS - 0.1}}}
west-w0 | {{"step": 64, "at": 120.0, "loss": 2.0}}
"""


def test_time_and_bytes_are_those_up_to_the_loss(tmp_path: Path) -> None:
    samples = [{"at_s": at_s, "bytes": {"west->east": 1000 * at_s}} for at_s in (90, 100, 105, 110, 115)]
    (tmp_path / "traffic.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    found = figures_of(curve_in(SAID), tmp_path, limit_s=60.0)
    assert (found["seconds"], found["steps"], found["wan_bytes"]) == (10.0, 32, 20_000)
    never = figures_of(curve_in(SAID)[:1], tmp_path, limit_s=12.0)
    assert (never["seconds"], never["steps"], never["wan_bytes"]) == (None, 0, 20_000)
    cells = {Cell("lossy", "gloo", 1, 60.0): found, Cell("lossy", "diloco", 1, 60.0): {**found, "seconds": 5.0}}
    gloo, ours = table("lossy", cells, {}).rows
    assert gloo[:4] == ["gloo", "10.0", "", "0.0"] and ours[:3] == ["diloco", "5.0", "0.50"]
    diverged = {Cell("lossy", "gloo", 1, 60.0): {**never, "loss": None}}
    assert "diverged" in table("lossy", diverged, {}).rows[0][4]


@pytest.mark.parametrize(("name", "workers"), [("quickstart", 8), ("netstorm9", 9), ("lossy", 4)])
def test_the_networks(name: str, workers: int) -> None:
    topology = Topology.from_value(NETWORKS[name](), Path("any.yaml"))
    assert len(topology.workers) == workers


def test_netstorm_s_rates_are_scaled() -> None:
    link = NETWORKS["netstorm9"]()["links"][0]
    assert link["forward"]["trace"]["scale"] == NETSTORM_SCALE and Path(link["forward"]["trace"]["file"]).is_file()


def test_forks_are_refused() -> None:
    """Scripts are launched on the host always."""
    with pytest.raises(SystemExit) as refused:
        main(["--forks"])
    assert refused.value.code == 2
