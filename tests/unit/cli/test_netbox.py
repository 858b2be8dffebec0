from dataclasses import dataclass, field

import pytest

from virtcloud.cli.netbox import PoolChange, _put_pools
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import ElementError, Forbidden, NotFound
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

CHANGES = {
    Name(site): PoolChange(former=VlanSet.parse("100"), wanted=VlanSet.parse("100-199"))
    for site in ("brno", "plzen", "praha")
}


@dataclass
class FakePools:
    """A fake SBF with the pools of three sites. ``errors`` are the errors of changes, by site."""

    errors: dict[str, Exception] = field(default_factory=dict)
    pools: dict[str, VlanSet] = field(default_factory=lambda: dict.fromkeys(CHANGES, VlanSet.parse("100")))

    def versioned_pool(self, site: str) -> tuple[Pool, str]:
        return Pool(vlans=self.pools[site]), "1"

    def put_pool(self, site: str, pool: Pool, version: str) -> None:
        assert version == "1"
        if site in self.errors:
            raise self.errors[site]
        self.pools[site] = pool.vlans


def test_a_failed_pool_does_not_prevent_the_other_changes() -> None:
    sbf = FakePools({"brno": Forbidden("not yours"), "plzen": NotFound("no such site")})
    with pytest.raises(
        ElementError, match=r"2 of 3 pools were not changed(.|\n)*brno: not yours\n.*plzen: no such site"
    ):
        _put_pools(sbf, CHANGES)  # type: ignore[arg-type] # a fake
    assert sbf.pools["praha"] == VlanSet.parse("100-199")


def test_a_pool_that_already_has_the_ids_is_no_error() -> None:
    sbf = FakePools(pools=dict.fromkeys(CHANGES, VlanSet.parse("100-199")))
    _put_pools(sbf, CHANGES)  # type: ignore[arg-type] # a fake


def test_a_pool_that_changed_since_the_comparison_stays() -> None:
    sbf = FakePools(pools=dict.fromkeys(CHANGES, VlanSet.parse("100")) | {"brno": VlanSet.parse("300")})
    with pytest.raises(ElementError, match="brno: expected 100 as in the comparison, found 300"):
        _put_pools(sbf, CHANGES)  # type: ignore[arg-type] # a fake
    assert (sbf.pools["brno"], sbf.pools["praha"]) == (VlanSet.parse("300"), VlanSet.parse("100-199"))
