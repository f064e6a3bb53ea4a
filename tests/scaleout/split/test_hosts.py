"""The connection to a host's process."""

from __future__ import annotations

import sys
from ipaddress import IPv4Address

import pytest

from testbed.scaleout.split.host import HostPath
from testbed.scaleout.split.hosts import HostLost, HostProcess

LOOPBACK = IPv4Address("127.0.0.1")


@pytest.mark.system
def test_values_and_errors_arrive_with_their_types_and_a_lost_host_is_named() -> None:
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "-"]
    command = [*alone, sys.executable, "-m", "testbed.scaleout.split.host"]
    host = HostProcess("north", command, LOOPBACK, b"0123456789abcdef")
    try:
        path = host.submit("paths", {"north": LOOPBACK}).result()["north"]
        assert isinstance(path, HostPath) and path.round_trip_s is not None
        with pytest.raises(AttributeError, match="fleet"):
            host.submit("fleet.kill", "a-w0").result()
        host._process.kill()
        with pytest.raises(HostLost) as caught:
            host.submit("running").result()
        assert caught.value.host == "north"
    finally:
        host.close()
