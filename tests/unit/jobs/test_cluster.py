"""From a job's request and hosts to the cluster that SBF is asked for."""

import pytest

from virtcloud.jobs.cluster import cluster_of, hosts_of
from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import parse
from virtcloud.model.cluster import ClusterSpec


def test_guests_are_numbered_host_by_host_with_addresses_in_that_order() -> None:
    made = cluster_of(parse("image=debian12:guests=2:mem=1gb:subnet=10.0.0.0/24"), "alice", ["n1", "n2"], 3600)
    spec = ClusterSpec.model_validate(made)
    assert [(guest.name, guest.host, guest.addresses) for guest in spec.guests] == [
        ("g1", "n1", ("10.0.0.1/24",)),
        ("g2", "n1", ("10.0.0.2/24",)),
        ("g3", "n2", ("10.0.0.3/24",)),
        ("g4", "n2", ("10.0.0.4/24",)),
    ]
    assert (spec.owner, spec.hosts, spec.lease_s, spec.guests[0].memory_mb) == ("alice", ("n1", "n2"), 3600, 1024)


def test_a_subnet_that_is_too_small_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError) as caught:
        cluster_of(parse("image=a:guests=2:subnet=10.0.0.0/30"), "alice", ["n1", "n2"], 3600)
    assert str(caught.value) == "vcluster: subnet: expected room for 4 guests, got 10.0.0.0/30 with 2 addresses"


@pytest.mark.parametrize(
    ("exec_vnode", "hosts"),
    [
        ("(n1:ncpus=4)+(n2:ncpus=4)", ("n1", "n2")),
        ("(n1:ncpus=4+n2:ncpus=4)", ("n1", "n2")),
        ("(n1:ncpus=1)+(n1:ncpus=1)", ("n1",)),
        ("n1", ("n1",)),
    ],
)
def test_hosts_are_read_from_what_pbs_chose(exec_vnode: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(exec_vnode) == hosts
