"""Makes the traces of the quickstart, the same files each time: `python traces/make_quickstart.py`.

Each directed link's rate wanders about its mean (Ornstein–Uhlenbeck, a row a second for three minutes, then again).
Between Washington and London both directions drop to a sixth from 30 s to 60 s.
"""

from __future__ import annotations

from pathlib import Path

from testbed.trace.csv import write_csv
from testbed.trace.generate import Drop, OrnsteinUhlenbeck
from testbed.trace.trace import Trace

#: Link → (mean rate in Mbit/s, seed).
LINKS = {
    "toronto-washington": (36, 1),
    "washington-toronto": (36, 2),
    "toronto-tokyo": (20, 3),
    "tokyo-toronto": (16, 4),
    "washington-london": (30, 5),
    "london-washington": (30, 6),
}
DROPS = {name: Drop(30, 60, 1 / 6) for name in ("washington-london", "london-washington")}


def make(folder: Path) -> None:
    """Write every trace into the folder."""
    for name, (mean_mbps, seed) in LINKS.items():
        generator = OrnsteinUhlenbeck(mean_mbps * 1e6, spread=0.1, return_s=20, step_s=1, duration_s=180, seed=seed)
        comments, trace = [f"{generator}"], generator.trace()
        if drop := DROPS.get(name):
            comments.append(f"{drop}")
            trace = Trace(drop.over(trace.rows))
        write_csv(folder / f"{name}.csv", trace, comments)


if __name__ == "__main__":
    target = Path(__file__).parent / "quickstart"
    target.mkdir(exist_ok=True)
    make(target)
