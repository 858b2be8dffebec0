"""Tests of service nodes: gateways that offer a service, here a file server, in the networks of clusters."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import delete, select
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.networks.gateway_addresses import ensure_gateway_addresses
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.gateway_tables import ServiceNodeRow
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, NoGateway, NotFound
from virtcloud.model.nfs import NFS, NfsListener
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.model.wanted import Segment

HOME = {"name": "home", "folder": "/srv/home/{owner}"}
DATA = {"name": "data", "folder": "/srv/data", "read_only": True}
KEYS = ("demo", "a", "b")
FILES = {"exports": [HOME, DATA]}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Brno has two gateways, one of which has a file server. Praha has no gateway."""
    gateways = {"brno": (gateway("brno-gw"), gateway("brno-files", nfs=FILES))}
    furnished = furnish(make_world(tmp_path_factory.mktemp("world")), topology_with_gateways(**gateways))
    yield furnished
    furnished.close()


@pytest.fixture
def world(installation: World) -> Iterator[World]:
    yield installation
    for key in KEYS:
        with suppress(NotFound):
            installation.delete(key)
    installation.settle()


def put(world: World, key: str = "demo", *hosts: str, **changes: Any) -> None:
    world.put(key, spec(*(hosts or ("brno-h1",)), **{"services": ["nfs"], **changes}))
    world.settle()


def segment(world: World, element: str, key: str = "demo") -> Segment:
    return next(one for one in world.wanted_of_host(element).segments if one.key == key)


def test_a_cluster_gets_the_file_server_of_its_site(world: World) -> None:
    put(world)
    served = segment(world, "brno-files")
    assert served.nfs is not None
    assert [(export.name, export.folder, export.read_only) for export in served.nfs.exports] == [
        ("home", "/srv/home/alice", False),
        ("data", "/srv/data", True),
    ]
    assert world.wanted_of_host("brno-gw").segments == ()


def test_guests_learn_the_address_of_the_file_server(world: World) -> None:
    put(world, subnets=["10.0.0.0/24"])
    assert segment(world, "brno-files").gateway_addresses == ("10.0.0.246/24",)
    assert segment(world, "brno-h1").services == {"nfs": ("10.0.0.246/24",)}


def test_hosts_get_no_exports(world: World) -> None:
    put(world)
    assert segment(world, "brno-h1").nfs is None


def test_only_the_file_servers_agent_must_support_nfs(world: World) -> None:
    put(world)
    assert NFS in segment(world, "brno-files").requires
    assert NFS not in segment(world, "brno-h1").requires


def test_identical_clusters_get_the_folders_of_their_owners(world: World) -> None:
    put(world, "a", subnets=["10.0.0.0/24"])
    put(world, "b", subnets=["10.0.0.0/24"], owner="bob")
    first, second = (segment(world, "brno-files", key) for key in ("a", "b"))
    assert first.gateway_addresses == second.gateway_addresses
    folders = [str(one.nfs.exports[0].folder) for one in (first, second) if one.nfs]
    assert folders == ["/srv/home/alice", "/srv/home/bob"]


def test_a_cluster_without_a_service_has_no_file_server(world: World) -> None:
    put(world, services=[])
    assert world.wanted_of_host("brno-files").segments == ()


def test_a_site_without_file_servers_is_refused_with_the_remedy(world: World) -> None:
    with pytest.raises(NoGateway, match=r"at praha, got none; known gateways: brno-files at brno.*--reach brno"):
        put(world, "demo", "praha-h1")


def test_a_cluster_reaches_the_file_server_of_another_site(world: World) -> None:
    put(world, "demo", "praha-h1", sites=["brno"])
    assert segment(world, "brno-files").nfs is not None


def test_services_belong_to_the_network(world: World) -> None:
    put(world)
    with pytest.raises(ValueError, match="expected the key services only for a new network"):
        spec("brno-h2", services=["nfs"], joins="demo")


def test_no_guest_has_the_name_of_the_service(world: World) -> None:
    guest = {"name": "nfs", "host": "brno-h1", "image": "debian"}
    with pytest.raises(ValueError, match="guest nfs: expected a name other than the service's name nfs"):
        spec(guests=[guest], services=["nfs"])


def test_the_file_server_is_removed_with_the_cluster(world: World) -> None:
    put(world)
    world.delete("demo")
    world.settle()
    assert world.wanted_of_host("brno-files").segments == ()


def test_a_dry_run_is_refused_without_addresses_for_services(world: World) -> None:
    """SBF assigns no addresses to the guests of a batch job. So this network has no subnet for the file server."""
    request = {"spec": spec("brno-h1", services=["nfs"]).model_dump(mode="json")}
    token = world.token(Role.SCHEDULER, "pbs")
    dry_run, creation = (
        ask(world, "PUT", f"/v1/clusters/demo{query}", request, token=token) for query in ("?dry_run=true", "")
    )
    assert problem(dry_run) == problem(creation)
    assert problem(dry_run)[2] == (
        "spec.services: expected a subnet for the addresses of brno-files, got a network without subnets"
    )


@pytest.mark.parametrize("folder", ["/srv/home", "srv/{owner}", "/srv/../{owner}", "/srv//{owner}", "/srv/{user}", "/"])
def test_writable_folders_have_valid_paths_that_contain_the_owner(folder: str) -> None:
    with pytest.raises(BadInput):
        NfsListener(exports=[HOME | {"folder": folder}])


def test_the_cluster_shows_how_to_mount_its_files(world: World) -> None:
    put(world, subnets=["10.0.0.0/24"])
    view = ClusterView.model_validate(ask(world, "GET", "/v1/clusters/demo").json())
    assert [mount.command for mount in view.mounts] == [
        "mount -t nfs4 -o vers=4.2 10.0.0.246:/home /mnt",
        "mount -t nfs4 -o vers=4.2 10.0.0.246:/data /mnt",
    ]
    assert [mount.read_only for mount in view.mounts] == [False, True]


def test_a_cluster_without_files_shows_no_mounts(world: World) -> None:
    put(world, services=[])
    assert "mounts" not in ask(world, "GET", "/v1/clusters/demo").json()


def test_hosts_get_a_revision_if_their_file_server_ends(world: World) -> None:
    """The agents of hosts fetch a wanted document again only if its revision changes."""
    put(world, subnets=["10.0.0.0/24"])
    before, revision = segment(world, "brno-h1").services, world.element("brno-h1").wanted_revision
    former = world.topology()
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw"), gateway("brno-files"))))
    try:
        assert segment(world, "brno-h1").services != before
        assert world.element("brno-h1").wanted_revision > revision
    finally:
        world.put_topology(former)


def test_a_moved_file_server_has_addresses(world: World) -> None:
    put(world, vpn=True)
    former = world.topology()
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", nfs=FILES), gateway("brno-files"))))
    try:
        served = segment(world, "brno-gw")
        assert (served.nfs is None, len(served.gateway_addresses)) == (False, 2)
        assert segment(world, "brno-h1").services["nfs"] == served.gateway_addresses
    finally:
        world.put_topology(former)


def both(**changes: object) -> Topology:
    return topology_with_gateways(brno=(gateway("brno-gw", nfs=FILES), gateway("brno-files", nfs=FILES, **changes)))


@contextmanager
def kept_topology(world: World) -> Iterator[None]:
    former = world.topology()
    try:
        yield
    finally:
        world.put_topology(former)


def servers(world: World) -> list[str]:
    return [name for name in ("brno-gw", "brno-files") if segment(world, name).nfs is not None]


def test_a_second_file_server_takes_over_no_network(world: World) -> None:
    put(world, vpn=True)
    before, revision = segment(world, "brno-h1").services, world.element("brno-h1").wanted_revision
    with kept_topology(world):
        world.put_topology(both())
        assert servers(world) == ["brno-files"]
        assert (segment(world, "brno-h1").services, world.element("brno-h1").wanted_revision) == (before, revision)
        view = ClusterView.model_validate(ask(world, "GET", "/v1/clusters/demo").json())
        assert {mount.gateway for mount in view.mounts} == {"brno-files"}


def test_an_upgrade_keeps_the_service_nodes_of_networks(world: World) -> None:
    """Older versions of SBF did not record service nodes."""
    put(world, vpn=True)
    with world.store.change() as unit:
        unit.connection.execute(delete(ServiceNodeRow))
    with kept_topology(world):
        world.put_topology(both())
        world.put_topology(both(vpn={"address": "192.0.2.1"}))
        assert servers(world) == ["brno-files"]


def test_a_file_server_that_returns_takes_over_no_network(world: World) -> None:
    put(world, vpn=True)
    with kept_topology(world):
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", nfs=FILES), gateway("brno-files"))))
        world.put_topology(both())
        assert servers(world) == ["brno-gw"]


def test_a_sites_only_file_server_serves_again_after_its_return(world: World) -> None:
    put(world, vpn=True)
    with kept_topology(world):
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw"), gateway("brno-files"))))
        assert servers(world) == []
        world.put_topology(both())
        assert servers(world) == ["brno-files"]


def test_a_new_service_node_gets_a_revision(world: World) -> None:
    """The topology does not change this gateway, and it already has addresses in the network."""
    put(world, vpn=True)
    with kept_topology(world):
        world.put_topology(both())
        with world.store.change() as unit:
            ensure_gateway_addresses(unit, find_clusters(unit, ClusterRow.key == "demo")[-1], Name("brno-gw"))
        revision = world.element("brno-gw").wanted_revision
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", nfs=FILES), gateway("brno-files"))))
        assert servers(world) == ["brno-gw"]
        assert world.element("brno-gw").wanted_revision > revision


def test_an_ended_network_has_no_service_node(world: World) -> None:
    put(world)
    world.delete("demo")
    world.settle()
    with world.store.read() as unit:
        assert unit.session.scalars(select(ServiceNodeRow)).all() == []
