import random
from collections import Counter
from typing import Any

import pytest

from sbf_service.domain.placement import (
    CandidateHost,
    ComputeResources,
    Overcommit,
    compute_total,
    place_guests,
    sum_used,
)
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import NoCapacity
from virtcloud.model.guest_spec import GuestSpread
from virtcloud.model.values import Name
from virtcloud.model.views import HostCapacity


def host(name: str, cpus: int, memory_mb: int = 8192, used: tuple[int, int] = (0, 0), **keys: Any) -> CandidateHost:
    return CandidateHost(
        Name(name), Name(name.partition("-")[0]), ComputeResources(cpus, memory_mb), ComputeResources(*used), **keys
    )


def spread(count: int, **keys: object) -> GuestSpread:
    return GuestSpread.model_validate({"count": count, "image": "debian", "cpus": 1, "memory_mb": 1024} | keys)


def placed(count: int, *hosts: CandidateHost, **keys: object) -> dict[str, int]:
    return dict(Counter(guest.host for guest in place_guests(spread(count, **keys), hosts)))


def test_guests_have_the_requested_names_and_sizes() -> None:
    (guest, _) = place_guests(spread(2, prefix="n", cpus=2, memory_mb=2048), [host("brno-h1", 8)])
    assert (guest.name, guest.host, guest.image, guest.cpus, guest.memory_mb) == ("n1", "brno-h1", "debian", 2, 2048)


def test_guests_have_the_requested_limits_and_disks() -> None:
    limits = {"disk_mb": 1024, "disks": ({"name": "data", "size_mb": 64},), "pids": 500, "bandwidth_mbit": 100}
    (guest,) = place_guests(spread(1, **limits), [host("brno-h1", 8)])
    assert guest.model_dump(include=set(limits)) == limits


def test_a_host_with_twice_the_capacity_gets_twice_the_guests() -> None:
    assert placed(6, host("brno-h1", 4, 65536), host("brno-h2", 8, 65536)) == {"brno-h1": 2, "brno-h2": 4}


def test_guests_of_other_clusters_reduce_a_hosts_share() -> None:
    assert placed(2, host("brno-h1", 4, used=(2, 2048)), host("brno-h2", 4)) == {"brno-h2": 2}


def test_the_scarcer_resource_decides_the_placement() -> None:
    assert placed(1, host("brno-h1", 64, 2048), host("brno-h2", 4, 8192)) == {"brno-h2": 1}


def test_equal_hosts_of_all_sites_get_guests() -> None:
    hosts = [host("brno-h1", 4), host("brno-h2", 4), host("praha-h1", 4), host("praha-h2", 4)]
    assert placed(2, *hosts) == {"brno-h1": 1, "praha-h1": 1}


def test_no_host_gets_more_guests_than_fit() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        hosts = [
            host(f"s{n % 3}-h{n}", numbers.randint(1, 8), numbers.randint(256, 8192), (numbers.randint(0, 9), 512))
            for n in range(numbers.randint(1, 6))
        ]
        cpus, memory, count = numbers.randint(1, 3), numbers.randint(128, 2048), numbers.randint(1, 9)
        room = {one.name: one.count_room(ComputeResources(cpus, memory)) for one in hosts}
        if sum(room.values()) < count:
            with pytest.raises(NoCapacity):
                placed(count, *hosts, cpus=cpus, memory_mb=memory)
        else:
            found = placed(count, *hosts, cpus=cpus, memory_mb=memory)
            assert sum(found.values()) == count
            assert all(number <= room[name] for name, number in found.items())


def test_the_error_explains_every_host() -> None:
    hosts = [
        host("brno-h1", 4, used=(2, 1024)),
        host("brno-h2", 4, 1000, used=(4, 900)),
        host("praha-h1", 8, obstacle="its agent is unreachable (never sent a heartbeat)"),
    ]
    with pytest.raises(NoCapacity) as caught:
        placed(3, *hosts, sites=["brno", "praha"])
    assert str(caught.value) == (
        "expected room for 3 guests of 1 CPU and 1024 MiB at brno, praha, got room for 2: "
        "host brno-h1: room for 2 guests, guests use 2 of 4 CPUs and 1024 of 8192 MiB; "
        "host brno-h2: guests use 4 of 4 CPUs and 900 of 1000 MiB; "
        "host praha-h1: its agent is unreachable (never sent a heartbeat): "
        "request fewer or smaller guests, request other sites, or wait until clusters end"
    )


def test_the_error_explains_at_most_twenty_hosts() -> None:
    with pytest.raises(NoCapacity, match=r"host h20: .*; and 5 more hosts: request fewer"):
        placed(1, *(host(f"h{n}", 0) for n in range(1, 26)))


def test_the_settings_limit_the_capacity_for_guests() -> None:
    overcommit = Overcommit(cpus=1.5, memory=0.5, host_memory_mb=96)
    assert compute_total(HostCapacity(cpus=3, memory_mb=1096), overcommit) == ComputeResources(4, 500)
    assert compute_total(HostCapacity(cpus=1, memory_mb=64), overcommit) == ComputeResources(1, 0)


def test_the_guests_of_all_clusters_use_capacity() -> None:
    guests = [{"name": f"g{n}", "host": "h1", "image": "x", "cpus": n, "memory_mb": 100} for n in (1, 2)]
    spec = ClusterSpec.model_validate({"owner": "alice", "guests": guests, "hosts": ["h2"]})
    assert sum_used([spec, spec]) == {"h1": ComputeResources(6, 400)}


def test_a_name_of_a_spread_differs_from_other_guests() -> None:
    guests = [{"name": "g2", "host": "h1", "image": "x"}]
    with pytest.raises(ValueError, match="expected each guest to have its own name, got name g2 2 times"):
        ClusterSpec.model_validate({"owner": "alice", "guests": guests, "spread": {"count": 2, "image": "x"}})
