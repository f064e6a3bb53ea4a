"""Runs `testbed` as `python -m testbed.cli`."""

from __future__ import annotations

from testbed.cli import main

main()
