"""Tests of the decisions whether a gateway admits a VPN device, and whether the device's session ends."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from virtcloud.agent.gateway.admission import (
    LEASE_ENDED,
    MOVED,
    NO_GRANT,
    REPLACED_ELSEWHERE,
    DeviceRequest,
    DeviceSession,
    admit,
    decide,
    find_ended_sessions,
    index_grants,
    is_renewal,
    list_options,
)
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.model.errors import Forbidden
from virtcloud.model.vpn import VpnGrant, VpnProtocol
from virtcloud.model.wanted import Segment

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FINGERPRINT, OTHER = "aa" * 32, "bb" * 32
REQUEST = DeviceRequest(3, 1, FINGERPRINT, "p1", "192.0.2.1:5000")


def make_grant(**changes: Any) -> VpnGrant:
    keys = {
        "profile": "p1",
        "cluster": "c1",
        "user": "alice",
        "device": "laptop",
        "fingerprint": FINGERPRINT,
        "addresses": ("10.0.0.9/24", "fd00::9/64"),
        "expires_at": NOW + timedelta(hours=1),
    }
    return VpnGrant.model_validate(keys | changes)


def make_network(*grants: VpnGrant, **changes: Any) -> Segment:
    keys = {"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "grants": grants}
    return Segment.model_validate(keys | changes)


GRANTS = index_grants([make_network(make_grant())])


def make_session(**changes: Any) -> DeviceSession:
    return admit(REQUEST, decide(REQUEST, GRANTS, NOW), NOW).model_copy(update=changes)


def find_reasons(network: Segment | None, now: datetime = NOW, **changes: Any) -> list[tuple[str, bool]]:
    grants = None if network is None else index_grants([network])
    ended = find_ended_sessions([make_session(**changes)], grants, now)
    return [(one.reason, one.connects_again) for one in ended]


def test_a_device_gets_the_vlan_and_addresses_of_its_grant() -> None:
    assert list(list_options(decide(REQUEST, GRANTS, NOW))) == [
        "vlan-pvid 100",
        'push "ifconfig 10.0.0.9 255.255.255.0"',
        'push "ifconfig-ipv6 fd00::9/64 ::"',
    ]


@pytest.mark.parametrize(("mtu", "pushed"), [(1400, ['push "tun-mtu 1400"']), (1500, []), (9000, []), (None, [])])
def test_a_device_gets_its_networks_mtu_only_below_1500(mtu: int | None, pushed: list[str]) -> None:
    granted = decide(REQUEST, index_grants([make_network(make_grant(addresses=()), mtu=mtu)]), NOW)
    assert list(list_options(granted)) == ["vlan-pvid 100", *pushed]


def test_a_certificate_without_grant_is_refused() -> None:
    with pytest.raises(Forbidden, match=NO_GRANT):
        decide(REQUEST._replace(fingerprint=OTHER), GRANTS, NOW)


def test_a_grant_admits_no_device_at_its_end_time() -> None:
    end = NOW + timedelta(hours=1)
    assert decide(REQUEST, GRANTS, end - timedelta(microseconds=1)).network == "c1"
    with pytest.raises(Forbidden, match=LEASE_ENDED):
        decide(REQUEST, GRANTS, end)


def test_a_connected_device_cannot_change_its_certificate() -> None:
    grants = index_grants([make_network(make_grant(), make_grant(fingerprint=OTHER, profile="p2"))])
    renewal = REQUEST._replace(fingerprint=OTHER, renews=True)
    with pytest.raises(Forbidden, match=NO_GRANT):
        decide(renewal, grants, NOW, make_session())


def test_a_session_with_a_grant_continues() -> None:
    assert find_reasons(make_network(make_grant())) == []


def test_a_connection_that_began_after_the_replacement_continues() -> None:
    assert find_reasons(make_network(make_grant(replaced=NOW - timedelta(microseconds=1)))) == []


def test_an_extended_lease_extends_the_session() -> None:
    network = make_network(make_grant(expires_at=NOW + timedelta(hours=9)))
    assert find_reasons(network, NOW + timedelta(hours=2)) == []


@pytest.mark.parametrize(
    ("network", "ended"),
    [
        (make_network(), (NO_GRANT, False)),
        (make_network(make_grant(fingerprint=OTHER)), (NO_GRANT, False)),
        (make_network(make_grant(expires_at=NOW)), (LEASE_ENDED, False)),
        (make_network(make_grant(replaced=NOW)), (REPLACED_ELSEWHERE, False)),
        (make_network(make_grant(), vlan=101), (MOVED, True)),
        (make_network(make_grant(), id="c2"), (MOVED, True)),
        (make_network(make_grant(addresses=("10.0.0.8/24",))), (MOVED, True)),
    ],
    ids=[
        "no grant",
        "another certificate",
        "lease ended",
        "another gateway",
        "another VLAN",
        "another network",
        "another address",
    ],
)
def test_a_session_ends_with_its_grant(network: Segment, ended: tuple[str, bool]) -> None:
    assert find_reasons(network) == [ended]


def test_without_a_document_a_session_ends_with_its_lease() -> None:
    assert find_reasons(None) == []
    assert find_reasons(None, NOW + timedelta(hours=1)) == [(LEASE_ENDED, False)]


@pytest.mark.parametrize(
    ("request_", "session", "seconds", "expected"),
    [
        (REQUEST._replace(renews=True), make_session(), 3599, True),
        (REQUEST._replace(renews=True), make_session(), 3600, False),
        (REQUEST._replace(renews=True), make_session(fingerprint=OTHER), 0, False),
        (REQUEST._replace(renews=True), None, 0, False),
        (REQUEST, make_session(), 0, False),
    ],
    ids=["before the end", "at the end", "another certificate", "unknown session", "new connection"],
)
def test_without_a_document_only_known_devices_renew_keys(
    request_: DeviceRequest, session: DeviceSession | None, seconds: int, *, expected: bool
) -> None:
    assert is_renewal(request_, session, NOW + timedelta(seconds=seconds)) == expected


def test_a_connection_during_the_receipt_of_grants_is_not_lost() -> None:
    class SlowDict(dict[str, tuple[datetime, VpnProtocol, int]]):
        def items(self) -> Any:
            listed = list(super().items())
            connecting.start()
            connecting.join(0.3)
            return listed

    shared = SharedGrants(latest=SlowDict())
    connecting = threading.Thread(target=shared.note, args=(VpnProtocol.UDP, make_session()))
    shared.receive(GRANTS)
    connecting.join()
    assert shared.latest == {"p1": (NOW, VpnProtocol.UDP, 3)}
