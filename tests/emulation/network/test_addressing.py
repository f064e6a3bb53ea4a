from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network.addressing import LANS, WANS, Addressing
from testbed.spec.topology import MAX_WORKERS

pytestmark = pytest.mark.pure

SITES = st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=2, max_size=12, unique=True)


@given(SITES, st.integers(1, 8))
def test_no_address_is_given_twice(sites: list[str], workers: int) -> None:
    addressing = Addressing()
    routers = [addressing.router(site) for site in sites]
    given_ = [*routers, *(addressing.worker(site, i) for site in sites for i in range(workers))]
    given_ += [addressing.wan(a, b) for a in sites for b in sites if a != b]
    assert len({interface.ip for interface in given_}) == len(given_)


@given(SITES)
def test_a_site_is_one_subnet_and_a_pair_of_links_another(sites: list[str]) -> None:
    addressing = Addressing()
    for site in sites:
        assert addressing.worker(site, MAX_WORKERS - 1) in addressing.lan(site)
        assert addressing.worker(site, MAX_WORKERS - 1).ip < addressing.lan(site).broadcast_address
        assert addressing.router(site).network == addressing.lan(site)
        assert addressing.lan(site).subnet_of(LANS)
    a, b = sites[:2]
    assert addressing.wan(a, b).network == addressing.wan(b, a).network
    assert addressing.wan(a, b).network.subnet_of(WANS)
    assert addressing.next_hop(a, b) == addressing.wan(b, a).ip
    assert {addressing.wan(a, b).ip, addressing.wan(b, a).ip} == set(addressing.wan(a, b).network.hosts())


@given(SITES)
def test_an_address_once_given_stays(sites: list[str]) -> None:
    addressing = Addressing()
    first, second, *rest = sites
    before = (addressing.worker(first, 3), addressing.wan(second, first))
    for site in rest:
        addressing.lan(site)
        addressing.wan(site, first)
    assert (addressing.worker(first, 3), addressing.wan(second, first)) == before


def test_more_sites_than_one_byte_counts() -> None:
    addressing = Addressing()
    lans = [addressing.lan(f"s{i}") for i in range(300)]
    assert str(lans[299]) == "10.1.43.0/24"
    assert len(set(lans)) == 300
