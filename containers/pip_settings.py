"""Install packages with uv by pip's settings: uv needs a quarter of pip's time, but reads only settings of its own.

    python -m containers.pip_settings [OPTION...]    uv pip install OPTION... into this Python's environment

Packages are searched where pip would search, by its files and its environment, and the newest version of any of those
places is taken. pip and uv are those beside the running Python; this program needs the standard library alone.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

Settings = dict[str, list[str]]

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip")
UV = str(Path(sys.executable).with_name("uv"))


class ToolError(Exception):
    """pip or uv failed, or found no answer; the text has its output."""


def output(command: Sequence[str], given: str = "", more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what a command of pip or uv prints, with `given` as its input and `more` variables in its environment.

    Raises:
        ToolError: The command failed.
    """
    environment = {**os.environ, **more}
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ToolError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


#: pip's settings for which uv has an option, given once for each value.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
#: pip's settings that uv takes from the environment. Proxies in the environment are the same for both.
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}


def pip_settings() -> Settings:
    """Return the values of pip's settings by name. The environment's go before those of files.

    Raises:
        ToolError: pip failed.
    """
    return parse(output([*PIP, "config", "list"]))


def parse(listed: str) -> Settings:
    """Parse the output of `pip config list`: `global.index-url='…'`, `:env:.index-url='…'`."""
    settings: Settings = {}
    for line in reversed(listed.splitlines()):
        key, _, value = line.partition("=")
        level, _, name = key.rpartition(".")
        values = ast.literal_eval(value).split()
        if values and (level == ":env:" or name not in settings):  # pip ignores an empty value
            settings[name] = values
    return settings


def options(settings: Settings) -> Iterator[str]:
    """Yield the settings as uv's options."""
    for name, option in OPTIONS.items():
        yield from (f"{option}={value}" for value in settings.get(name, []))
    if settings.get("no-index", ["0"])[0].lower() in {"1", "true", "yes", "on"}:
        yield "--no-index"
    yield "--system-certs"  # as pip does; uv's own list lacks the authority of a company
    yield "--index-strategy=unsafe-best-match"  # as pip does: from any index; the lock has every file's hash


def variables(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables for uv."""
    return {variable: settings[name][0] for name in VARIABLES if name in settings for variable in VARIABLES[name]}


def cache_options() -> list[str]:
    """Return uv's option against a cache, unless the home belongs to this process's user, who can write it.

    In another user's home, which sudo may leave as $HOME, root must not make a cache.
    """
    home = Path.home()
    return [] if os.access(home, os.W_OK) and home.stat().st_uid == os.getuid() else ["--no-cache"]


def main(words: list[str]) -> int:
    """Install the packages. Returns uv's exit code, or 3 where pip's settings cannot be read."""
    try:
        settings = pip_settings()
    except ToolError as error:
        print(error, file=sys.stderr)
        return 3
    # Hard links would share files with uv's cache, and the checkout's owner later becomes the owner of its files.
    command = [UV, "pip", "install", f"--python={sys.executable}", "--link-mode=copy", *cache_options()]
    return subprocess.run([*command, *options(settings), *words], env={**os.environ, **variables(settings)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
