"""Secrets in files: for their owner alone to read, and whole or not there."""

from __future__ import annotations

from pathlib import Path

from testbed.atomic_file import write_text
from testbed.errors import BAD_INPUT
from testbed.trace.text import text_of

MOST_SECRET_BYTES = 2**16


class SecretError(OSError):
    """A file whose secret is none, or no secret any more; the text says what to do about it."""

    exit_code = BAD_INPUT


def write_secret(path: Path, secret: str) -> None:
    """Write a secret in the place of what was there, so that nobody else can read it at any time."""
    write_text(path, secret, mode=0o600)


def read_secret(path: Path) -> str:
    """The secret in a file, without the space around it. SecretError when it has none, or others may read it."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SecretError(f"{path}: others may read this secret (mode {mode:o}); make it yours alone: chmod 600 {path}")
    try:
        secret = text_of(path, MOST_SECRET_BYTES).strip()
    except ValueError as error:
        raise SecretError(f"{path}: cannot be read as a secret: {error}") from None
    if not secret:
        raise SecretError(f"{path}: there is no secret in it; remove the file")
    return secret
