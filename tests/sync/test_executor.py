"""The error of a thread that can't start names the limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.local

NOBODY = 65534
#: The limit on processes does not hold for root.
PROGRAM = f"""
import os, resource, threading
from testbed.sync.errors import SyncError
from testbed.sync.executor import start
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setuid({NOBODY})
try:
    start(threading.Thread(name="to paris-w0", target=print))
except SyncError as error:
    print(error)
"""


def test_a_thread_for_which_there_is_no_room() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert "`to paris-w0`" in said.stdout, said
