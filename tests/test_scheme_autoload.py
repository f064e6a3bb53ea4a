"""What PyTorch calls as it is imported; as it is installed, tests/controller/test_machines.py has it called."""

from __future__ import annotations

import pytest

from testbed import scheme_autoload

pytestmark = pytest.mark.unit


def test_a_text_that_names_no_scheme_ends_the_script_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESTBED_SCHEME", "diloco:every=0")
    with pytest.raises(SystemExit) as ended:
        scheme_autoload.load()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "TESTBED_SCHEME=diloco:every=0: every: is 0; write instead: at least 1\n"
