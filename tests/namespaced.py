"""A Python program in a network namespace: `python -m tests.namespaced PID TICKS (-m MODULE | FILE) …`.

The namespace is that of a process, or a thread of one. PyTorch may be there already, in a fork: what it loads as it is
imported is then called here.
"""

from __future__ import annotations

import atexit
import sys

from testbed import scheme_autoload
from testbed.emulation.network.namespace import enter
from testbed.emulation.process import ProcessIdentity
from tests.program import run_here

if __name__ == "__main__":
    pid, ticks, *words = sys.argv[1:]
    enter(ProcessIdentity(int(pid), int(ticks)))
    scheme_autoload.load()
    run_here(words)
    atexit._run_exitfuncs()  # a fork of multiprocessing ends without them
