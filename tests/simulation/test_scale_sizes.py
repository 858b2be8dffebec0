"""Tests of the measured installations' regions and pools in ``benchmarks/scale/sizes.py``."""

from collections import Counter

import pytest

from benchmarks.scale.sizes import SIZES, InstallationSize, Regions, make_topology


@pytest.mark.parametrize(
    ("sites", "regions"),
    [
        (4, [range(4)]),
        (10, [range(10)]),
        (15, [range(15)]),
        (32, [range(10), range(10, 20), range(20, 32)]),
    ],
)
def test_the_last_region_has_the_remaining_sites(sites: int, regions: list[range]) -> None:
    assert list(Regions(sites).list_all()) == regions


def test_a_cluster_has_two_neighbouring_sites_of_one_region() -> None:
    pairs = [Regions(20).pair_sites(number) for number in (0, 9, 10, 19, 20)]
    assert pairs == [(0, 1), (9, 0), (10, 11), (19, 10), (0, 1)]


def test_each_region_has_its_own_transport() -> None:
    topology = make_topology(Regions(25), 2)
    attached = Counter(attachment.transport for site in topology.sites for attachment in site.attachments)
    assert attached == {"core0000": 10, "core0010": 15}
    assert sorted(transport.name for transport in topology.transports) == ["core0000", "core0010"]


@pytest.mark.parametrize(
    ("name", "vlans"),
    [
        ("small", "100-599"),
        ("medium", "100-599"),
        ("dense", "100-2099"),
        ("wide", "100-599"),
        ("history", "100-599"),
        ("large", "100-599"),
    ],
)
def test_pools_have_500_vlan_ids_or_two_per_cluster(name: str, vlans: str) -> None:
    assert str(SIZES[name].pool) == vlans


def test_a_region_without_enough_vlan_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="4095"):
        _ = InstallationSize(10, 10, 2_000).pool
