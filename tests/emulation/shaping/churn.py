"""Links that come and go on one standing network: `sudo .venv/bin/python -m tests.emulation.shaping.churn`.

One link of a path is attached and detached 5,000 times, or as often as `--count` says, while the other stands and pings
now and then find both as they are set to. At the end the core has no file open that it had not before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path as FilePath

from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import LinkState
from tests.emulation.shaping.path import Path

STATE = LinkState(50e6, 0.005)
LOOK_EVERY = 500


def churn(path: Path, count: int) -> None:
    """AssertionError where a link is not as it should be."""
    with UserspaceShaper() as shaper:
        shaper.attach({path.back: STATE})
        files = _open_files(shaper.pid)
        for number in range(count):
            shaper.attach({path.there: STATE})
            if number % LOOK_EVERY == 0:
                trips = [ms for _, ms in path.ping(5)]
                assert len(trips) == 5 and min(trips) > 9, trips
                print(f"{number} attached and detached", flush=True)
            shaper.detach(path.there.link)
        assert set(shaper.counters()) == {path.back.link}
        assert _open_files(shaper.pid) == files
        assert path.ping(3, wait_s=0.3) == []


def _open_files(pid: int) -> int:
    return len(list(FilePath(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    asked, path, began = parser.parse_args(), Path(), time.monotonic()
    try:
        path.build()
        churn(path, asked.count)
    finally:
        path.remove()
    print(f"{asked.count} attached and detached in {time.monotonic() - began:.0f} s")
