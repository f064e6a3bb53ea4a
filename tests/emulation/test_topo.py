"""A topology file in a plain Mininet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from mininet.net import Mininet

from testbed.emulation.shaping import available_backends
from testbed.emulation.topo import WanTopo
from testbed.run.conclusion.verdict import RTT_TOLERANCE_S
from testbed.spec.errors import SpecError
from tests.emulation.network.test_network import LAN_S, namespaces_in_use
from tests.spec.files import TOPOLOGY, spoilt
from tests.waiting import until

pytestmark = pytest.mark.system


def write(folder: Path, value: object) -> Path:
    file = folder / "three.yaml"
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


def test_it_is_made_of_what_the_file_names(tmp_path: Path) -> None:
    topo = WanTopo(write(tmp_path, TOPOLOGY))
    workers = {"paris-w0", "paris-w1", "tokyo-w0", "dallas-w0"}
    assert set(topo.hosts()) == workers | {"paris-r", "tokyo-r", "dallas-r"}
    assert topo.switches() == []
    wires = {frozenset(ends) for ends in topo.links()}
    routers = {frozenset(("paris-r", "tokyo-r")), frozenset(("paris-r", "dallas-r"))}
    assert wires == routers | {frozenset((f"{worker.partition('-')[0]}-r", worker)) for worker in workers}


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        WanTopo(write(tmp_path, spoilt(TOPOLOGY, "links", 0, "rate", to="fast")))
    assert caught.value.fields == ("links.0.rate",)


def test_mininet_builds_it_shaped_and_routed_and_takes_it_away(tmp_path: Path) -> None:
    backend = next(name for name, complaint in available_backends().items() if complaint is None)
    Mininet.inited = True  # its start would raise limits of this machine, which are not a test's to change
    net = Mininet(topo=WanTopo(write(tmp_path, TOPOLOGY)), controller=None)
    try:
        net.start()
        ours = {str(host.netns.readlink()) for host in net.hosts}
        assert ours <= namespaces_in_use()
        expected_s = 2 * (0.110 + 0.055) + LAN_S  # tokyo - paris - dallas
        said = net["tokyo-w0"].cmd("ping -nq -c 4 -i 0.05", net["dallas-w0"].IP())
        closing = re.search(r"= ([\d.]+)/", said)
        assert closing, said
        assert float(closing[1]) / 1e3 >= expected_s - RTT_TOLERANCE_S[backend]
    finally:
        net.stop()
    until(lambda: not ours & namespaces_in_use())  # the kernel's threads end a moment after Python's
