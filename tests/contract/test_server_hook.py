"""Tests of the server hook with a real SBF over TLS. The hook uses only the standard library."""

from collections.abc import Iterator

import pytest
from support.batch_fakes.single_site import SingleSite, run_single_site

from virtcloud.model.cluster import ClusterRequest, ClusterState
from virtcloud.model.errors import GuestTaken


@pytest.fixture(scope="module")
def site() -> Iterator[SingleSite]:
    with run_single_site() as made:
        yield made


def test_each_run_has_its_own_cluster_until_it_ends(site: SingleSite) -> None:
    started = site.hook.start("image=debian12:subnet=10.0.0.0/24", key="1.PBSsrv", run_version=2)
    assert started.accepted, started
    view = site.cluster("1.pbssrv")
    assert (view.state, view.attempt, view.spec.owner) == (ClusterState.CONFIGURING, 3, "alice")
    assert [(guest.host, guest.addresses) for guest in view.spec.guests] == [
        ("n1", ("10.0.0.1/24",)),
        ("n2", ("10.0.0.2/24",)),
    ]
    assert site.hook.end(2, key="1.pbssrv").accepted
    assert site.cluster("1.pbssrv").state is ClusterState.CONFIGURING
    assert site.hook.end(3, key="1.pbssrv").accepted
    assert site.cluster("1.pbssrv").state is ClusterState.DRAINING


def test_a_long_server_name_is_accepted(site: SingleSite) -> None:
    key = f"1234567.{'x' * 63}.{'y' * 63}.{'z' * 63}.{'w' * 63}"
    started = site.hook.start("image=debian12", key=key)
    assert started.accepted, started
    assert site.cluster(key).state is ClusterState.CONFIGURING


def test_a_run_waits_for_the_network_of_the_former_run(site: SingleSite) -> None:
    assert site.hook.start("image=debian12", key="2.pbssrv").accepted
    message = str(site.hook.start("image=debian12", key="2.pbssrv", run_version=1).message)
    never = "has not confirmed (its agent has never called SBF)"
    expected = f"host n1 at brno {never}; host n2 at brno {never}"
    assert message.startswith(
        "vcluster: the network of the job's former run is still being removed (switch brno-sw at brno"
    )
    assert message.endswith(f"{expected}); the job will be tried again")


def test_a_reused_run_number_gets_no_cluster(site: SingleSite) -> None:
    assert site.hook.start("image=debian12", key="3.pbssrv").accepted
    assert site.hook.start("image=debian12:guests=2", key="3.pbssrv").accepted
    assert site.cluster("3.pbssrv").state is ClusterState.DRAINING


def test_the_hook_understands_the_problems_of_sbf(site: SingleSite) -> None:
    site.hook.settings["hosts"] = {"n2": "n7"}
    found = site.hook.start("image=debian12", key="4.pbssrv")
    site.hook.settings["hosts"] = {}
    assert found.message == "vcluster: host n2 has no switch port in SBF; the job will be tried again"
    found = site.hook.start("image=debian12:vlan=1203", key="4.pbssrv")
    assert found.message == (
        "vcluster: VLAN 1203 is not in the pool of site brno (100-199): choose a free VLAN ID (virtcloud site show "
        "brno), or omit the VLAN ID: SBF then chooses one"
    )
    site.operator.put_quota("erik", clusters=0)
    found = site.hook.start("image=debian12", key="4.pbssrv", owner="erik")
    assert found.message == "vcluster: erik already has 0 clusters (limit 0)"


def test_jobs_join_a_network_by_its_name(site: SingleSite) -> None:
    assert site.hook.start("image=debian12:name=mine:share=bob", key="5.pbssrv").accepted
    assert site.hook.submit("image=a:name=mine").message == "vcluster: 'mine' is already running as job 5.pbssrv"
    assert site.hook.submit("image=a:net=mine", user="bob").accepted
    assert site.hook.submit("image=a:net=mine", user="dora").message == (
        "vcluster: network 'mine' is not shared with dora"
    )
    assert site.hook.start("image=debian12:net=mine", key="6.pbssrv", owner="bob").accepted
    addresses = [guest.addresses for key in ("5.pbssrv", "6.pbssrv") for guest in site.cluster(key).spec.guests]
    assert len(set(addresses)) == 4
    found = site.hook.start("image=debian12:net=mine", key="7.pbssrv", owner="dora")
    assert (found.message, found.changed) == ("vcluster: network 'mine' is not shared with dora", {"Hold_Types": "u"})
    found = site.hook.start("image=debian12:name=mine", key="7.pbssrv")
    assert found.message == "vcluster: 'mine' is already running as job 5.pbssrv; the job will be tried again"


def test_addresses_of_another_job_are_refused_as_taken(site: SingleSite) -> None:
    """If two jobs join a network at the same time, the hook may send the same addresses for both."""
    assert site.hook.start("image=debian12:name=both", key="8.pbssrv").accepted
    spec = site.cluster("8.pbssrv").spec.model_copy(update={"name": None, "joins": "both"})
    with pytest.raises(GuestTaken):
        site.operator.put_cluster("9.pbssrv", ClusterRequest(spec=spec, attempt=1))
