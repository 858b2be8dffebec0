"""Tests of seeds and peers in the wanted documents of hosts.

A *seed* is the data that a guest reads at its first boot. The *peers* of a guest are the guests of its network.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, update
from support.sbf_fakes.world import World, spec

from sbf_service.domain.ssh_key_pairs import derive_cluster_key
from sbf_service.store.clusters.clusters import read_peers
from sbf_service.store.clusters.guest_seeds import read_service_secret
from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.users.user_keys import add_user_key
from virtcloud.agent.difference import digest
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict
from virtcloud.model.guest_seed import GuestSeed
from virtcloud.model.ssh_keys import UserKey
from virtcloud.model.values import UserName
from virtcloud.model.wanted import Segment

KEY = UserKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3 alice@laptop")
OTHER = UserKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP//8ANYbUBqMGVNVPvdqVfmROgPr8Vr/PQXIb6nsYWr")
RING = spec("brno-h1", name="ring", shares_with=["bob"])
CONFIG = "#cloud-config\npackages: [htop]\n"


def add_key(world: World, key: UserKey, user: str = "alice") -> None:
    with world.store.change() as unit:
        add_user_key(unit, UserName(user), key, world.service.settings.limits)


def segment(world: World, host: str) -> Segment:
    (found,) = world.wanted_of_host(host).segments
    return found


def seed(world: World, host: str, guest: str = "g1") -> GuestSeed:
    (found,) = (wanted.seed for wanted in segment(world, host).guests if wanted.name == guest)
    assert found is not None
    return found


def member(host: str, owner: str = "alice") -> ClusterSpec:
    addresses = [] if host == "plzen-h1" else ["10.0.0.2/24"]
    guests = [{"name": f"at-{host}", "host": host, "image": "debian", "addresses": addresses}]
    return ClusterSpec.model_validate({"owner": owner, "joins": "ring", "guests": guests})


def names_of_peers(world: World, host: str) -> list[str]:
    return [f"{peer.cluster}/{peer.name}" for peer in segment(world, host).peers]


def keys_of(found: GuestSeed) -> list[str]:
    return [" ".join(key.split(" ")[2:]) or "none" for key in found.authorized_keys]


# What a new cluster records.


def test_a_seed_has_the_owners_keys_and_the_clusters_key(world: World) -> None:
    add_key(world, KEY)
    world.put("demo", spec("brno-h1", authorized_keys=[OTHER, KEY]))
    with world.store.read() as unit:
        pair = derive_cluster_key(read_service_secret(unit), world.view("demo").id)
    found = seed(world, "brno-h1")
    assert found.authorized_keys == (KEY, OTHER, f"{pair.public} cluster demo")
    assert found.cluster_key == pair.private


def test_later_keys_do_not_change_a_running_guest(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    before = world.wanted_of_host("brno-h1")
    add_key(world, KEY)
    assert world.wanted_of_host("brno-h1") == before


@pytest.mark.parametrize(
    ("owner", "user", "login"),
    [
        ("alice", None, "alice"),
        ("Eva.Nova@example.org", None, "eva_nova"),
        ("9pm", None, "u9pm"),
        ("alice", "me", "me"),
    ],
)
def test_the_guests_user_is_the_owner_or_chosen(world: World, owner: str, user: str | None, login: str) -> None:
    world.put("demo", spec("brno-h1", owner=owner, user=user))
    assert seed(world, "brno-h1").user == login


def test_user_data_reaches_the_guest_and_no_audit_row(world: World) -> None:
    guest = {"name": "g1", "host": "brno-h1", "image": "debian", "user_data": CONFIG}
    world.put("demo", spec(guests=[guest]))
    world.settle()
    assert seed(world, "brno-h1").user_data == CONFIG
    assert not [row for row in world.audit() if "htop" in f"{row.why} {row.difference}"]


def test_clusters_from_before_the_upgrade_have_no_seeds(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    with world.store.change() as unit:
        unit.session.execute(update(ClusterRow).values(login=None))
    found = segment(world, "brno-h1")
    (guest,) = found.guests
    assert (guest.seed, [peer.host_key for peer in found.peers]) == (None, [None])
    assert "seed" not in json.loads(guest.model_dump_json(exclude_none=True))


def test_a_repeated_document_has_the_same_digest(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    documents = [segment(world, "brno-h1") for _ in range(2)]
    assert documents[0] == documents[1]
    assert len({digest(found, found.guests[0]) for found in documents}) == 1


# Members of a network.


def test_peers_are_all_guests_of_the_network(world: World) -> None:
    world.put("root", RING)
    world.put("other", spec("brno-h1"))
    world.put("m1", member("praha-h1"))
    expected = ["root/g1", "m1/at-praha-h1"]
    networks = {found.key: found.peers for found in world.wanted_of_host("brno-h1").segments}
    assert [f"{peer.cluster}/{peer.name}" for peer in networks["root"]] == expected
    assert networks["root"] == segment(world, "praha-h1").peers
    assert networks["root"][1].addresses == ("10.0.0.2/24",)


def test_each_member_has_its_own_key_pair(world: World) -> None:
    world.put("root", RING)
    world.put("m1", member("brno-h1", owner="bob"))
    own, other = seed(world, "brno-h1", "g1"), seed(world, "brno-h1", "at-brno-h1")
    assert own.cluster_key != other.cluster_key
    assert (keys_of(own), keys_of(other)) == (["cluster root"], ["cluster m1"])
    assert (own.user, other.user) == ("alice", "bob")


def test_other_hosts_receive_new_members_and_degrade_no_cluster(world: World) -> None:
    world.put("root", RING)
    world.settle()
    states = []
    for change in (lambda: world.put("m1", member("praha-h1")), lambda: world.delete("m1")):
        before = world.element("brno-h1").wanted_revision
        change()
        world.sweep()
        assert world.element("brno-h1").wanted_revision == before + 1
        states.append((world.view("root").state, names_of_peers(world, "brno-h1")))
        world.settle()
    assert states == [("active", ["root/g1", "m1/at-praha-h1"]), ("active", ["root/g1"])]
    assert not world.audit("cluster_degraded")


def test_a_member_waits_for_no_other_host(world: World) -> None:
    world.put("root", RING)
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.put("m1", member("praha-h1"))
    world.settle()
    assert world.view("m1").state == "active"


def test_a_member_without_guests_changes_no_peers(world: World) -> None:
    """``first`` extends the network to Praha before ``m1`` joins.

    Without ``first``, ``m1`` would add a transport to the network. The MTU of the transport would change all documents.
    """
    at_praha = ClusterSpec.model_validate({"owner": "alice", "joins": "ring", "hosts": ["praha-h1"]})
    world.put("root", RING)
    world.put("first", at_praha)
    world.settle()
    before = world.element("brno-h1").wanted_revision
    world.put("m1", at_praha)
    world.delete("m1")
    assert world.element("brno-h1").wanted_revision == before


def test_the_end_of_a_network_increments_each_host_once(world: World) -> None:
    world.put("root", RING)
    hosts = ("brno-h1", "praha-h1", "plzen-h1")
    for host in hosts[1:]:
        world.put(f"at-{host}", member(host))
    world.settle()
    before = [world.element(host).wanted_revision for host in hosts]
    world.delete("root")
    assert [world.element(host).wanted_revision for host in hosts] == [revision + 1 for revision in before]


def test_other_networks_do_not_increase_a_documents_cost(world: World) -> None:
    world.put("root", RING)
    statements: list[str] = []
    event.listen(world.store.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))

    def cost() -> int:
        statements.clear()
        world.wanted_of_host("brno-h1")
        return len(statements)

    alone = cost()
    for number in range(5):
        world.put(f"c{number}", spec("brno-h2", "praha-h1"))
    assert cost() == alone


# The service secret.


def test_all_replicas_use_the_secret_of_the_first_migration(empty_database: str) -> None:
    def read(_: int) -> str:
        engine = make_engine(empty_database)
        migrate(engine)
        with Store(engine).read() as unit:
            secret = read_service_secret(unit).get_secret_value().hex()
        engine.dispose()
        return secret

    with ThreadPoolExecutor(4) as replicas:
        secrets = set(replicas.map(read, range(4)))
    assert [len(secret) for secret in secrets] == [64]


# What users read.


def test_peers_are_read_with_the_guests_user(world: World) -> None:
    world.put("root", RING)
    world.put("m1", member("praha-h1", owner="bob"))
    with world.store.read() as unit:
        found = read_peers(unit, "m1")
    assert (found.user, found.peers) == ("bob", segment(world, "brno-h1").peers)
    assert found.network == world.view("root").id


def test_an_ended_cluster_has_no_peers(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.delete("demo")
    with world.store.read() as unit, pytest.raises(Conflict, match="cluster demo is draining, and its guests are"):
        read_peers(unit, "demo")
