"""Which numbers are free, and which one is taken."""

from datetime import UTC, datetime

import pytest

from sbf_service.pools import SitePool, free_at_all, take
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


def pool(
    site: str, given: str, claimed: str = "", quarantined: str = "", freed: dict[int, int] | None = None
) -> SitePool:
    """Make a pool; ``freed`` gives the day of January on which a number came back."""
    days = {VlanId(number): datetime(2026, 1, day, tzinfo=UTC) for number, day in (freed or {}).items()}
    return SitePool(Name(site), vlans(given), vlans(claimed), vlans(quarantined), freed=days)


def test_free_is_what_is_given_and_neither_claimed_nor_kept_back_nor_excluded() -> None:
    one = SitePool(Name("brno"), vlans("1,100-109"), vlans("100"), vlans("101"), excluded=vlans("105-109"))
    assert str(one.free) == "102-104"


def test_vlan_1_is_never_free() -> None:
    assert str(pool("brno", "1-3").free) == "2-3"


def test_free_at_all_sites_is_what_each_of_them_has() -> None:
    sites = [pool("brno", "100-199"), pool("praha", "100-149,160-219"), pool("plzen", "120-199", claimed="120-130")]
    assert str(free_at_all(sites)) == "131-149,160-199"


def test_no_site_has_no_number() -> None:
    assert str(free_at_all([])) == ""


def test_the_lowest_of_the_never_used_is_taken() -> None:
    assert set(take([pool("brno", "100-105", claimed="100"), pool("praha", "101-105")]).values()) == {101}


def test_a_number_never_used_comes_before_one_used_long_ago() -> None:
    assert set(take([pool("brno", "100-101", freed={100: 1})]).values()) == {101}


def test_the_number_unused_for_longest_at_every_site_is_taken() -> None:
    """100 came back early in Brno, but late in Praha: what counts is its last use anywhere."""
    brno = pool("brno", "100-102", freed={100: 1, 101: 5, 102: 6})
    praha = pool("praha", "100-102", freed={100: 20})
    assert set(take([brno, praha]).values()) == {101}


def test_numbers_freed_together_are_taken_lowest_first() -> None:
    assert set(take([pool("brno", "100-102", freed={102: 3, 101: 3, 100: 4})]).values()) == {101}


def test_used_up_pools_are_named_with_what_they_give_and_what_is_used() -> None:
    sites = [
        pool("brno", "100-139", claimed="100-139"),
        pool("praha", "100-139", claimed="100-137", quarantined="138-139"),
        pool("plzen", "100-119", claimed="100-119"),
    ]
    with pytest.raises(NoVlanFree) as caught:
        take(sites)
    assert str(caught.value) == (
        "no VLAN is free at brno, praha, plzen: brno gives 40, 40 in use; praha gives 40, 38 in use and 2 in "
        "quarantine; plzen gives 20, 20 in use; end a cluster, or give more numbers to the pools"
    )


def test_pools_with_nothing_in_common_are_told_so() -> None:
    with pytest.raises(NoVlanFree) as caught:
        take([pool("brno", "100-109"), pool("praha", "200-209", claimed="200")])
    assert str(caught.value) == (
        "no VLAN is free at brno, praha: brno gives 10, 0 in use; praha gives 10, 1 in use; each has free numbers, "
        "but no number is free at all of them, and what joins them does not translate: give the same numbers to their "
        "pools, or join them by a transport that gives each cluster its own service"
    )


def test_the_same_number_is_taken_everywhere_also_where_it_could_be_translated() -> None:
    chosen = take([pool("brno", "100-109"), pool("praha", "105-109")], translates=True)
    assert chosen == {"brno": 105, "praha": 105}


def test_where_no_number_is_common_each_site_gets_its_own_longest_unused() -> None:
    used = pool("praha", "200-201", freed={200: 5, 201: 3})
    assert take([pool("brno", "100-109", claimed="100"), used], translates=True) == {"brno": 101, "praha": 201}


def test_translation_does_not_help_a_site_that_has_none_free() -> None:
    with pytest.raises(NoVlanFree, match=r"praha gives 1, 1 in use; end a cluster, or give more numbers to the pools"):
        take([pool("brno", "100-109"), pool("praha", "200", claimed="200")], translates=True)


def test_an_empty_pool_is_told_to_be_filled() -> None:
    with pytest.raises(NoVlanFree) as caught:
        take([pool("brno", ""), pool("praha", "200-209")])
    assert str(caught.value) == (
        "no VLAN is free at brno, praha: brno gives none; praha gives 10, 0 in use; give numbers to the pool of brno"
    )
