"""The network ``ring``, and the clusters that join this network (its *members*)."""

from support.sbf_fakes.world import World, spec
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.views import ClusterView

RING = spec("brno-h1", name="ring", shares_with=["bob"])


def guest(name: str, host: str, *addresses: str) -> dict[str, object]:
    return {"name": name, "host": host, "image": "debian", "addresses": addresses}


def member(*hosts: str, **changes: object) -> ClusterSpec:
    """Return the spec of a member of network ``ring``, with one guest on each host, named after the host."""
    guests = [guest(f"at-{host}", host) for host in hosts]
    return ClusterSpec.model_validate({"owner": "alice", "joins": "ring", "guests": guests} | changes)


def join_network(world: World, key: str, *hosts: str) -> ClusterView:
    world.put(key, member(*hosts))
    world.settle()
    return world.view(key)


def states(world: World, *keys: str) -> list[str]:
    return [str(world.view(key).state) for key in keys]


def request_body(wanted: ClusterSpec, attempt: int | None = None) -> dict[str, object]:
    return {"spec": wanted.model_dump(mode="json"), "attempt": attempt}


def revisions(world: World) -> dict[str, int]:
    return {name: world.element(name).wanted_revision for name in world.topology().elements}


def changed_elements(world: World, before: dict[str, int]) -> list[str]:
    return sorted(name for name, revision in revisions(world).items() if revision > before[name])
