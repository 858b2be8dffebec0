import time
from collections.abc import Iterator

import pytest
from support.lab.clusters import create, pings, remove

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.traffic import TrafficRate
from virtcloud.model.values import Address
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

KEY, HOSTS = "traffic", ("brno-h1", "praha-h1")
LIMIT_S = 120.0
"""The time limit in seconds for a report. An agent reports after a change and every 30 s."""
PINGS, SIZE = 20, 1000
SENT = PINGS * SIZE
MOST = 1_000_000
"""A limit in bytes per second that is far above all correct rates of this module."""


@pytest.fixture(scope="module")
def cluster(client: SbfClient) -> Iterator[ClusterView]:
    guests = tuple(
        Guest(name=f"g{i}", host=host, image="busybox", memory_mb=32, addresses=(Address(f"10.0.0.{i}/24"),))
        for i, host in enumerate(HOSTS, 1)
    )
    yield create(client, KEY, ClusterSpec(owner="alice", guests=guests))
    if client.cluster(KEY).placements:
        remove(client, KEY)


def read_rates(client: SbfClient) -> dict[str, list[TrafficRate]]:
    return {str(one.element): list(one.rates) for one in client.traffic(KEY)}


def total(rates: list[TrafficRate]) -> tuple[float, float]:
    received = sum(rate.received_bytes * rate.seconds for rate in rates)
    return received, sum(rate.sent_bytes * rate.seconds for rate in rates)


def wait_for_rates(client: SbfClient, expected: float) -> dict[str, list[TrafficRate]]:
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = read_rates(client)
        if set(found) == set(HOSTS) and all(min(total(rates)) > expected for rates in found.values()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def wait_for_first_reports(client: SbfClient) -> None:
    deadline = time.monotonic() + LIMIT_S
    while set(read_rates(client)) != set(HOSTS):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_pings_of_guests_raise_the_rates_of_their_hosts(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    """A ping request and its reply have the same size, so each host receives as many bytes as it sends."""
    wait_for_first_reports(client)
    for _ in range(PINGS):
        assert pings(lab, cluster, 0, "-c1", f"-s{SIZE}", "10.0.0.2")
    found = wait_for_rates(client, SENT)
    assert all(max(total(rates)) < 2 * SENT for rates in found.values()), found


def test_a_restart_of_an_agent_causes_no_wrong_rate(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    before = read_rates(client)[HOSTS[0]]
    lab.service(HOSTS[0], "agent").stop()
    lab.service(HOSTS[0], "agent").start()
    deadline = time.monotonic() + LIMIT_S
    while read_rates(client)[HOSTS[0]][-1].ends <= before[-1].ends:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    rates = read_rates(client)[HOSTS[0]]
    assert all(min(rate.received_bytes, rate.sent_bytes) >= 0 for rate in rates)
    assert all(max(rate.received_bytes, rate.sent_bytes) < MOST for rate in rates)
    assert cluster.id == client.cluster(KEY).id


def test_an_ended_cluster_has_no_traffic(client: SbfClient) -> None:
    assert read_rates(client)
    remove(client, KEY)
    assert read_rates(client) == {}
