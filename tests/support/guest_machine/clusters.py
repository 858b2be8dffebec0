"""An SBF that sends the wanted documents of networks and clusters to one host, and checks the host's confirmations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.fake_machine import FakeElementApi
from support.hosts.seed_documents import SEED
from virtcloud.model.image import ImageSource
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import GuestWanted, Segment

VLANS = range(100, 104)


@dataclass
class HostCluster:
    """A cluster with its guests on the host. ``network`` is None if the cluster created its network."""

    key: str
    id: str
    network: str | None
    vlan: int
    mtu: int | None = None
    guests: dict[str, dict[str, Any]] = field(default_factory=dict)


class ClusterSbf(FakeElementApi):
    """The clusters that use the host. As the real SBF does, reuse a VLAN ID only after a confirmed removal."""

    def __init__(self) -> None:
        super().__init__()
        self.clusters: dict[str, HostCluster] = {}
        self.removed: dict[str, tuple[int, int]] = {}
        """For each network whose removal is not confirmed, by ID: the VLAN ID, and the revision of the removal."""
        self.count = 0
        self.known: dict[str, str] = {}
        """The reports about incomplete clusters, by cluster ID. The ID "" stands for the host."""

    def add(self, key: str, network: str | None = None) -> HostCluster | None:
        """Add a cluster, or return None if the key is used, or no VLAN ID is free."""
        used = {one.vlan for one in self.clusters.values()} | {vlan for vlan, _ in self.removed.values()}
        free = [self.clusters[network].vlan] if network else [vlan for vlan in VLANS if vlan not in used]
        if key in {one.key for one in self.clusters.values()} or not free:
            return None
        self.count += 1
        cluster = HostCluster(key, f"c{self.count}", network, free[0], 1400 if self.count % 3 == 0 else None)
        self.clusters[cluster.id] = cluster
        return cluster

    def remove(self, cluster: str) -> None:
        for one in [one for one in self.clusters.values() if cluster in {one.id, one.network}]:
            del self.clusters[one.id]
            if one.network is None:
                self.removed[one.id] = one.vlan, self.document.revision + 1

    def list_guests(self) -> list[tuple[str, str]]:
        """Return the cluster's ID and the name of each guest."""
        return [(one.id, name) for one in self.clusters.values() for name in one.guests]

    def publish(self) -> None:
        self.want(*self._make_segments())

    def _make_segments(self) -> Iterator[Segment]:
        for cluster in self.clusters.values():
            if cluster.network is None:
                members = [one for one in self.clusters.values() if one.network == cluster.id]
                guests = [
                    GuestWanted.model_validate(guest | {"cluster": None if one is cluster else one.id})
                    for one in (cluster, *members)
                    for guest in one.guests.values()
                ]
                peers = [
                    {
                        "name": one.name,
                        "cluster": self._find_key(one, cluster),
                        "addresses": one.addresses,
                    }
                    for one in guests
                ]
                keys = {"id": cluster.id, "key": cluster.key, "vlan": cluster.vlan, "port": "eth0", "guests": guests}
                yield Segment.model_validate(
                    keys | {"members": {one.id: one.key for one in members}, "peers": peers, "mtu": cluster.mtu}
                )

    def _find_key(self, guest: GuestWanted, network: HostCluster) -> str:
        return network.key if guest.cluster is None else self.clusters[guest.cluster].key

    def confirm(self, element: str, confirmation: Confirmation) -> None:
        super().confirm(element, confirmation)
        remaining = confirmation.remaining or {}
        self.known = {**(confirmation.incomplete or {}), **remaining}
        for network, (_, removed) in list(self.removed.items()):
            if removed <= confirmation.revision and network not in remaining:
                del self.removed[network]

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        super().report_error(element, revision, message, refused, clusters)
        self.known |= {"": message, **(clusters or {})}


def describe_guest(name: str, number: int, image: str, source: ImageSource | None, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "image_source": source,
        "memory_mb": 64,
        "cpus": 1,
        "mac": f"02:00:00:00:00:{number:02x}",
        "addresses": [f"10.0.0.{number}/24"],
        "seed": SEED if number % 2 else None,
        **changes,
    }
