"""Service numbers: which one a new cluster gets."""

from datetime import UTC, datetime, timedelta

import pytest

from sbf_service.services import ServicePool, take_service
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name

EVPN = Name("evpn")
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_lowest_number_never_used_is_taken_first() -> None:
    freed = {10100: BEGUN}
    assert take_service(ServicePool(EVPN, range(10100, 10110), frozenset({10101}), freed=freed)) == 10102


def test_then_the_one_unused_for_longest() -> None:
    freed = {10100: BEGUN + timedelta(hours=2), 10101: BEGUN, 10102: BEGUN + timedelta(hours=1)}
    assert take_service(ServicePool(EVPN, range(10100, 10103), frozenset({10101}), freed=freed)) == 10102


def test_a_number_that_the_transport_gives_no_more_is_not_taken() -> None:
    pool = ServicePool(EVPN, range(10100, 10101), frozenset({10100}), freed={10050: BEGUN})
    with pytest.raises(NoVlanFree):
        take_service(pool)


def test_a_range_of_millions_is_not_walked() -> None:
    assert take_service(ServicePool(EVPN, range(1, 2**32))) == 1


def test_a_transport_without_a_free_number_is_named_with_its_range() -> None:
    pool = ServicePool(EVPN, range(10100, 10102), frozenset({10100, 10101}), quarantined=1)
    with pytest.raises(NoVlanFree) as caught:
        take_service(pool)
    assert str(caught.value) == (
        "no service number is free on transport evpn: it gives 10100-10101, all 2 in use, 1 of them in quarantine; "
        "end a cluster, or give the transport more numbers"
    )
