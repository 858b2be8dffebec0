from datetime import UTC, datetime, timedelta

import pytest

from sbf_service.domain.allocation import (
    ServicePool,
    SitePool,
    allocate_service_id,
    allocate_vlan_ids,
    find_free_at_every_site,
)
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


def pool(
    site: str, ids: str, claimed: str = "", quarantined: str = "", freed: dict[int, int] | None = None
) -> SitePool:
    times = {VlanId(vlan): datetime(2026, 1, day, tzinfo=UTC) for vlan, day in (freed or {}).items()}
    return SitePool(Name(site), vlans(ids), vlans(claimed), vlans(quarantined), freed=times)


def test_claimed_quarantined_and_excluded_vlan_ids_are_not_free() -> None:
    brno = SitePool(Name("brno"), vlans("1,100-109"), vlans("100"), vlans("101"), excluded=vlans("105-109"))
    assert str(brno.free) == "102-104"


def test_vlan_1_is_never_free() -> None:
    assert str(pool("brno", "1-3").free) == "2-3"


def test_vlan_ids_free_at_every_site_are_the_intersection() -> None:
    sites = [pool("brno", "100-199"), pool("praha", "100-149,160-219"), pool("plzen", "120-199", claimed="120-130")]
    assert str(find_free_at_every_site(sites)) == "131-149,160-199"


def test_without_sites_no_vlan_id_is_free() -> None:
    assert str(find_free_at_every_site([])) == ""


def test_the_lowest_unused_vlan_id_is_allocated() -> None:
    assert set(allocate_vlan_ids([pool("brno", "100-105", claimed="100"), pool("praha", "101-105")]).values()) == {101}


def test_an_unused_vlan_id_comes_before_a_released_one() -> None:
    assert set(allocate_vlan_ids([pool("brno", "100-101", freed={100: 1})]).values()) == {101}


def test_the_vlan_id_longest_unused_at_every_site_is_allocated() -> None:
    """VLAN ID 100 was released on 1 January in Brno and on 20 January in Praha. The later release counts."""
    brno = pool("brno", "100-102", freed={100: 1, 101: 5, 102: 6})
    praha = pool("praha", "100-102", freed={100: 20})
    assert set(allocate_vlan_ids([brno, praha]).values()) == {101}


def test_vlan_ids_released_simultaneously_are_allocated_lowest_first() -> None:
    assert set(allocate_vlan_ids([pool("brno", "100-102", freed={102: 3, 101: 3, 100: 4})]).values()) == {101}


def test_the_error_describes_the_usage_of_each_pool() -> None:
    sites = [
        pool("brno", "100-139", claimed="100-139"),
        pool("praha", "100-139", claimed="100-137", quarantined="138-139"),
        pool("plzen", "100-119", claimed="100-119"),
    ]
    with pytest.raises(NoVlanFree) as caught:
        allocate_vlan_ids(sites)
    assert str(caught.value) == (
        "no VLAN is free at every site (brno, praha, plzen): brno has 40 VLAN IDs, 40 in use; "
        "praha has 40 VLAN IDs, 38 in use and 2 in quarantine; plzen has 20 VLAN IDs, 20 in use; "
        "end a cluster, or add VLAN IDs to the pools"
    )


def test_the_error_about_pools_without_common_id_suggests_translation() -> None:
    with pytest.raises(NoVlanFree) as caught:
        allocate_vlan_ids([pool("brno", "100-109"), pool("praha", "200-209", claimed="200")])
    assert str(caught.value) == (
        "no VLAN is free at every site (brno, praha): brno has 10 VLAN IDs, 0 in use; praha has 10 VLAN IDs, 1 in use; "
        "each site has free VLAN IDs, but no VLAN ID is free at every site, and the transport between the sites "
        "cannot translate VLAN IDs: add the same VLAN IDs to all these pools, or use a transport that translates"
    )


def test_a_common_vlan_id_is_preferred_to_translation() -> None:
    chosen = allocate_vlan_ids([pool("brno", "100-109"), pool("praha", "105-109")], translates=True)
    assert chosen == {"brno": 105, "praha": 105}


def test_with_translation_each_site_gets_its_longest_unused_vlan_id() -> None:
    used = pool("praha", "200-201", freed={200: 5, 201: 3})
    assert allocate_vlan_ids([pool("brno", "100-109", claimed="100"), used], translates=True) == {
        "brno": 101,
        "praha": 201,
    }


def test_with_translation_an_exhausted_site_still_raises() -> None:
    with pytest.raises(NoVlanFree, match=r"praha has 1 VLAN ID, 1 in use; end a cluster, or add VLAN IDs to the pools"):
        allocate_vlan_ids([pool("brno", "100-109"), pool("praha", "200", claimed="200")], translates=True)


def test_the_error_about_an_empty_pool_suggests_filling_it() -> None:
    with pytest.raises(NoVlanFree) as caught:
        allocate_vlan_ids([pool("brno", ""), pool("praha", "200-209")])
    assert str(caught.value) == (
        "no VLAN is free at every site (brno, praha): brno has no VLAN IDs; praha has 10 VLAN IDs, 0 in use; "
        "add VLAN IDs to the pool of brno"
    )


EVPN = Name("evpn")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_lowest_unused_service_id_is_allocated_first() -> None:
    freed = {10100: NEW_YEAR}
    assert allocate_service_id(ServicePool(EVPN, range(10100, 10110), frozenset({10101}), freed=freed)) == 10102


def test_without_unused_service_ids_the_longest_unused_is_allocated() -> None:
    freed = {10100: NEW_YEAR + timedelta(hours=2), 10101: NEW_YEAR, 10102: NEW_YEAR + timedelta(hours=1)}
    assert allocate_service_id(ServicePool(EVPN, range(10100, 10103), frozenset({10101}), freed=freed)) == 10102


def test_a_service_id_outside_the_range_is_not_allocated() -> None:
    pool = ServicePool(EVPN, range(10100, 10101), frozenset({10100}), freed={10050: NEW_YEAR})
    with pytest.raises(NoVlanFree):
        allocate_service_id(pool)


def test_a_range_of_billions_is_not_enumerated() -> None:
    assert allocate_service_id(ServicePool(EVPN, range(1, 2**32))) == 1


def test_the_error_about_an_exhausted_transport_contains_its_range() -> None:
    pool = ServicePool(EVPN, range(10100, 10102), frozenset({10100, 10101}), quarantined=1)
    with pytest.raises(NoVlanFree) as caught:
        allocate_service_id(pool)
    assert str(caught.value) == (
        "no service ID is free on transport evpn: it has 2 service IDs (10100-10101), all in use, 1 of them in "
        "quarantine; end a cluster, or extend the transport's range of service IDs"
    )
