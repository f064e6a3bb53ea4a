"""Where a member finds its controller, in the variables of its environment.

TESTBED_CONTROLLER   tcp:HOST:PORT or unix:PATH
TESTBED_MEMBER       the member's name
TESTBED_TLS          the folder of its certificate; or
TESTBED_TOKEN_FILE   the file of its token. Neither at a Unix socket
TESTBED_LISTEN       the IPv4 address at which the others reach it; the first that is not the loopback's, if not set

A variable may name others, which torchrun and Slurm set for each process: `TESTBED_MEMBER=w{RANK}`,
`TESTBED_TLS=tls/w{SLURM_PROCID}`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from testbed.sync.session import Session, join

CONTROLLER, MEMBER = "TESTBED_CONTROLLER", "TESTBED_MEMBER"
TLS, TOKEN_FILE, LISTEN = "TESTBED_TLS", "TESTBED_TOKEN_FILE", "TESTBED_LISTEN"


def join_by_environment(device: str = "cpu", environ: Mapping[str, str] = os.environ) -> Session:
    """Join the run that the variables say, as the member that they say; what `join` raises, and ValueError where they
    don't say it."""
    control, name = _needed(environ, CONTROLLER, "tcp:HOST:PORT"), _needed(environ, MEMBER, "the member's name")
    token_file, tls = _of(environ, TOKEN_FILE), _of(environ, TLS)
    if token_file and tls:
        raise ValueError(f"{TOKEN_FILE} and {TLS} are both set: a member shows a token or a certificate; unset one")
    try:
        token = Path(token_file).read_text().strip() if token_file else ""
    except OSError as error:
        raise ValueError(f"{TOKEN_FILE}={token_file}: {error.strerror}: write a file that is there") from error
    return join(control, name, _of(environ, LISTEN), device, token=token, tls=tls or None)


def _needed(environ: Mapping[str, str], variable: str, instead: str) -> str:
    value = _of(environ, variable)
    if not value:
        raise ValueError(f"{variable} is not set: write {variable}={instead} into the environment")
    return value


def _of(environ: Mapping[str, str], variable: str) -> str:
    """A variable with those that it names put in; empty where it is not set."""
    value = environ.get(variable, "")
    try:
        return value.format_map(environ)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{variable}={value}: {error} can't be put in: write names of variables that are set between braces"
        ) from error
