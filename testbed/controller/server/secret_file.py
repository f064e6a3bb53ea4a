"""Files of secrets, readable by their owner alone, and written as a whole."""

from __future__ import annotations

import secrets
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.errors import BAD_INPUT
from testbed.trace.text import text_of

MOST_SECRET_BYTES = 2**16


class SecretError(OSError):
    """A file has no secret, or others can read the secret. The text says what to do."""

    exit_code = BAD_INPUT


def write_secret(path: Path, secret: str) -> None:
    """Write a secret, replacing the file, so that nobody else can read it at any time."""
    write_text(path, secret, mode=0o600)


def own_secret(path: Path) -> str:
    """Return the secret in a file, made if the file is missing. Raises SecretError as `read_secret` does."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32) + "\n")
    return read_secret(path)


def read_secret(path: Path) -> str:
    """Return the secret in a file, without the space around it.

    Raises:
        SecretError: The file has no secret, or others may read it.
    """
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SecretError(f"{path}: other users may read this secret (mode {mode:o}). Run: chmod 600 {path}")
    try:
        secret = text_of(path, MOST_SECRET_BYTES).strip()
    except ValueError as error:
        raise SecretError(f"{path}: the file is no secret: {error}; remove it to have a new one made") from None
    if not secret:
        raise SecretError(f"{path}: the file is empty; remove it to have a new secret made")
    return secret
