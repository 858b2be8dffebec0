"""Tests of the pure rules by which a gateway admits the addresses in DNS answers."""

import pytest

from virtcloud.agent.gateway.fqdn_answers import KEEP_S, FqdnAnswer, FqdnRecord, describe_names, merge_answer
from virtcloud.model.gateway_access import Destination, Fqdn
from virtcloud.model.outside_use import MAX_NAME_ADDRESSES

NOW = 1_800_000_000.0
SERVERS = tuple(f"192.0.2.{last}" for last in range(1, MAX_NAME_ADDRESSES + 10))


def merge(former: FqdnRecord, *addresses: str, at: float = NOW, **changes: object) -> FqdnRecord:
    answer = FqdnAnswer(addresses, **changes)  # type: ignore[arg-type] # keys of an answer
    return merge_answer(former, answer, lambda _: None, at)


def test_a_former_address_stays_for_an_hour() -> None:
    changed = merge(merge(FqdnRecord(), "192.0.2.1"), "192.0.2.2")
    before, after = merge(changed, "192.0.2.2", at=NOW + KEEP_S - 1), merge(changed, "192.0.2.2", at=NOW + KEEP_S)
    assert (set(before.addresses), set(after.addresses)) == ({"192.0.2.1", "192.0.2.2"}, {"192.0.2.2"})


def test_addresses_expire_although_the_clock_was_a_year_ahead() -> None:
    ahead = merge(merge(FqdnRecord(), "192.0.2.1"), "192.0.2.2", at=NOW + 365 * 86400)
    corrected = merge(ahead, "192.0.2.2", at=NOW)
    assert set(merge(corrected, "192.0.2.2", at=NOW + KEEP_S).addresses) == {"192.0.2.2"}


def test_an_address_stays_if_later_answers_contain_it() -> None:
    changed = merge(merge(FqdnRecord(), "192.0.2.1"), "192.0.2.2")
    again = merge(changed, "192.0.2.1", at=NOW + KEEP_S - 1)
    assert set(merge(again, "192.0.2.1", at=NOW + KEEP_S).addresses) == {"192.0.2.1", "192.0.2.2"}


def test_a_failed_resolver_removes_no_address() -> None:
    failed = merge(merge(FqdnRecord(), "192.0.2.1"), at=NOW + 100 * KEEP_S, error="down", is_temporary=True)
    assert failed == FqdnRecord({"192.0.2.1": None}, "down")


def test_an_answer_displaces_the_oldest_of_many_former_addresses() -> None:
    record = merge(merge(FqdnRecord(), *SERVERS[:40]), *SERVERS[40:60], at=NOW + 1)
    record = merge(record, *SERVERS[60:70], at=NOW + 2)
    assert len(record.addresses) == MAX_NAME_ADDRESSES
    assert set(SERVERS[40:70]) <= record.addresses.keys()


def test_an_address_that_becomes_forbidden_is_removed() -> None:
    """For example, an address becomes forbidden when an interface of the gateway gets this address."""
    record = FqdnRecord({"192.0.2.1": None, "192.0.2.2": None})
    assert merge_answer(record, FqdnAnswer(is_temporary=True), {"192.0.2.1": "own"}.get, NOW).addresses == {
        "192.0.2.2": None
    }


@pytest.mark.parametrize(("private", "admitted"), [((), []), (("10.1.0.0/16",), ["10.1.0.1", "64:ff9b::a01:1"])])
def test_private_addresses_need_permission_also_behind_nat64(private: tuple[str, ...], admitted: list[str]) -> None:
    keys = {"name": "web", "fqdns": ["a.example.org"], "ports": ["tcp/1"], "private_networks": private}
    records = {Fqdn("a.example.org"): FqdnRecord({"10.1.0.1": None, "64:ff9b::a01:1": None, "10.2.0.1": None})}
    (name,) = describe_names(Destination.model_validate(keys), records)
    assert [str(address) for address in name.addresses] == admitted


def test_a_name_without_any_answer_is_reported() -> None:
    keys = {"name": "web", "fqdns": ["a.example.org"], "ports": ["tcp/1"]}
    (name,) = describe_names(Destination.model_validate(keys), {})
    assert (name.addresses, name.error) == ((), "not resolved yet")
