"""uv searches where pip's settings say, and takes no file that is missing from the lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from containers.pip_settings import cache_options, options, parse, variables
from testbed.emulation.containers.requirements import ROOT

pytestmark = pytest.mark.local

LISTED = """\
:env:.cert='/etc/ours.pem'
:env:.index-url='https://environment/simple'
:env:.no-index='1'
global.extra-index-url='file:///one https://two/simple'
global.find-links='/wheels'
global.index-url='https://file/simple'
global.proxy='http://proxy:3128'
install.trusted-host='two'
user.timeout='90'
"""


#: The options that uv gets whatever pip's settings are.
ALWAYS = ["--system-certs", "--index-strategy=unsafe-best-match"]


@pytest.mark.parametrize(("home", "cache"), [(".", True), ("missing", False), ("/proc/1", False)])
def test_a_home_that_cannot_be_written_gets_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, cache: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path)  # root may write in any mode
    assert cache_options() == ([] if cache else ["--no-cache"])


def test_the_environment_goes_before_files_and_each_value_is_an_option() -> None:
    settings = parse(LISTED)
    assert list(options(settings)) == [
        "--default-index=https://environment/simple",
        "--index=file:///one",
        "--index=https://two/simple",
        "--find-links=/wheels",
        "--allow-insecure-host=two",
        "--no-index",
        *ALWAYS,
    ]
    assert variables(settings) == {
        "SSL_CERT_FILE": "/etc/ours.pem",
        "HTTP_PROXY": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
        "UV_HTTP_TIMEOUT": "90",
    }


def test_where_nothing_is_set_uv_looks_where_it_would() -> None:
    assert list(options(parse(""))) == ALWAYS
    assert list(options({"no-index": ["0"]})) == ALWAYS
    assert variables({}) == {}


def test_a_file_of_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "colours-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("colours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: colours\nVersion: 1.0\n")
        wheel.writestr("colours-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("colours-1.0.dist-info/RECORD", "")
    (tmp_path / "wanted.txt").write_text(f"colours==1.0 --hash=sha256:{'0' * 64}\n")
    words = ("--require-hashes", f"--requirement={tmp_path / 'wanted.txt'}", f"--target={tmp_path / 'into'}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(tmp_path))
        command = [sys.executable, "-m", "containers.pip_settings", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Hash mismatch for `colours" in done.stderr
    assert not list(tmp_path.glob("into/colours*"))


def test_an_empty_value_is_no_setting() -> None:
    """A variable of a CI job that was never set is empty."""
    settings = parse(":env:.proxy=''\n:env:.index-url=''\n:env:.no-index=''\nglobal.index-url='https://file/simple'\n")
    assert variables(settings) == {}
    assert list(options(settings)) == ["--default-index=https://file/simple", *ALWAYS]
