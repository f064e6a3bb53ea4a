"""Kernel settings that are put in force in a namespace, also on kernels that lack some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mininet.node import Node

from testbed.emulation import label
from testbed.emulation.network import node
from testbed.emulation.network.node import NamespaceNode, SettingRefused, _write_settings
from testbed.emulation.network.wiring import HOST_SETTINGS, ROUTER_SETTINGS
from testbed.errors import CANNOT, ending_of

pytestmark = pytest.mark.local


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the settings of a kernel that has those that routers and hosts need, but no IPv6."""
    monkeypatch.setattr(node, "SETTINGS", tmp_path)
    for setting in (*ROUTER_SETTINGS, *HOST_SETTINGS):
        if not setting.startswith("net.ipv6."):
            file = tmp_path / Path(*setting.partition("=")[0].split("."))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return tmp_path


@pytest.mark.parametrize("settings", [ROUTER_SETTINGS, HOST_SETTINGS])
def test_a_kernel_without_ipv6_needs_no_settings_of_it(kernel: Path, settings: tuple[str, ...]) -> None:
    _write_settings(settings)
    for setting in settings:
        name, _, value = setting.partition("=")
        file = kernel / Path(*name.split("."))
        assert not file.exists() if name.startswith("net.ipv6.") else file.read_text() == value


def test_any_other_setting_that_is_not_there_is_named_and_is_the_machines(kernel: Path) -> None:
    with pytest.raises(SettingRefused) as raised:
        _write_settings(["net.ipv4.ip_forward=1", "net.none.setting=1"])
    assert (raised.value.field, raised.value.given) == ("net.none.setting", "1")
    assert ending_of(raised.value)[0] == CANNOT


def test_with_ipv6_its_settings_are_put_in_force(kernel: Path) -> None:
    (kernel / "net/ipv6/conf/all").mkdir(parents=True)
    _write_settings(["net.ipv6.conf.all.disable_ipv6=1"])
    assert (kernel / "net/ipv6/conf/all/disable_ipv6").read_text() == "1"


@pytest.mark.parametrize("given", [None, {"HOME": "/root"}])
def test_a_program_carries_the_label_of_its_own_network(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str] | None
) -> None:
    """This process has opened another network since."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(Node, "_popen", lambda self, command, env: asked.append(env))
    monkeypatch.setenv(label.ENVIRONMENT, "other")
    worker = NamespaceNode.__new__(NamespaceNode)
    worker.labels = {label.ENVIRONMENT: "andes"}
    worker._popen(["true"], **({} if given is None else {"env": given}))
    assert asked == [{**(os.environ if given is None else given), label.ENVIRONMENT: "andes"}]
