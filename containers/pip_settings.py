"""pip's settings, for uv: it installs in a quarter of the time, and has settings of its own that nobody may know of.

    python -m containers.pip_settings [OPTION...]    uv pip install OPTION... into this Python's environment

Packages are looked for where pip would, by its files and its environment, and are as new as any of those places has
them. pip and uv are those beside the Python that this runs in; it needs the standard library alone.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Settings = dict[str, list[str]]


class SettingsError(Exception):
    """pip can't read its settings; the text has what it said."""


UV = str(Path(sys.executable).with_name("uv"))

#: What uv has an option for, once for each value.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
#: What it takes from the environment. Proxies that the environment names are the same for both.
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}


def pip_settings() -> Settings:
    """pip's settings by name, the values of each; the environment's go before files'. SettingsError where pip fails."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    if done.returncode:
        raise SettingsError(f"pip config list ended with {done.returncode}:\n{done.stderr}")
    return parse(done.stdout)


def parse(listed: str) -> Settings:
    """The settings as `pip config list` shows them: `global.index-url='…'`, `:env:.index-url='…'`."""
    settings: Settings = {}
    for line in reversed(listed.splitlines()):
        key, _, value = line.partition("=")
        level, _, name = key.rpartition(".")
        if level == ":env:" or name not in settings:
            settings[name] = ast.literal_eval(value).split()
    return settings


def options(settings: Settings) -> Iterator[str]:
    """They as uv's options."""
    for name, option in OPTIONS.items():
        yield from (f"{option}={value}" for value in settings.get(name, []))
    if settings.get("no-index", ["0"])[0].lower() in {"1", "true", "yes", "on"}:
        yield "--no-index"
    yield "--index-strategy=unsafe-best-match"  # as pip: whatever place has it; the lock has every file's hash


def variables(settings: Settings) -> dict[str, str]:
    """They as uv's environment, beside the caller's."""
    return {variable: settings[name][0] for name in VARIABLES if name in settings for variable in VARIABLES[name]}


def main(words: list[str]) -> int:
    """Install; uv's exit code, or 3 where there are no settings to be had."""
    try:
        settings = pip_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 3
    # A link would share the file with uv's cache, and who owns this checkout comes to own its files. A home that is
    # somebody else's, as sudo may leave it, gets no cache of root's.
    cache = [] if Path.home().stat().st_uid == os.getuid() else ["--no-cache"]
    command = [UV, "pip", "install", f"--python={sys.executable}", "--link-mode=copy", *cache, *options(settings)]
    return subprocess.run([*command, *words], env={**os.environ, **variables(settings)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
