"""Networks for the legacy command ``sbf``, which creates a network, and then adds and removes hosts by name.

For each added host, a separate cluster (a member cluster) joins the network. The cluster's key consists of the
network's ID and the host's name. Every call is idempotent. A call that fails removes the clusters that the call
created. ``sbf dumpstate`` prints the networks as XML. Scripts parse the output with grep, so each ``<tag>`` and each
``<host>`` is on a separate line.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import (
    BadInput,
    Conflict,
    Forbidden,
    Gone,
    NoSuchNetwork,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unauthenticated,
)
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView

REFUSALS = (BadInput, Conflict, Forbidden, Gone, NotFound, TooManyRequests, Unauthenticated)
"""Errors with which SBF refuses to create a cluster. After other errors, the cluster may exist."""


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """A network and its member clusters."""

    root: ClusterView
    members: tuple[ClusterView, ...]

    @property
    def hosts(self) -> list[Name]:
        """All hosts of the network, in name order."""
        return sorted({host for view in (self.root, *self.members) for host in view.spec.all_hosts})


@dataclass(frozen=True, slots=True)
class HostNetworks:
    """Networks whose IDs a scheduler chooses.

    ``timeout`` is the time limit in seconds from the creation of the object, so each command needs a new object.
    """

    client: Client
    timeout: float
    began: float = field(default_factory=time.monotonic)

    def ensure(self, network: ClusterKey, owner: str | None, sites: Iterable[str], lease: float) -> ClusterView:
        """Create a network at these sites (default: all), unless the network exists. Wait until the network is active.

        A new network belongs to ``owner`` (None: the caller), and is deleted if the call fails. Raise Conflict if the
        network exists, and belongs to an owner other than ``owner`` (None: any owner is accepted). Raise ClusterFailed,
        TimedOut, or an error of SBF.
        """
        existing = self._find(network)
        if existing is not None:
            if owner not in {None, existing.root.spec.owner}:
                found = existing.root.spec.owner
                raise Conflict(f"network {network}: expected the owner {owner}, found {found}; choose another ID")
            return Cluster(self.client.sbf, existing.root).wait_active(timeout=self._remaining_s).view
        names = tuple(sites) or tuple(site.name for site in self.client.sbf.sites())
        owner = owner or self.client.sbf.whoami().name
        spec = ClusterSpec.model_validate({"owner": owner, "sites": names, "lease_s": lease})
        with self._deleted_on_error(f"network {network}") as new:
            return self._create(network, spec, new).wait_active(timeout=self._remaining_s).view

    def add(self, network: ClusterKey, hosts: Sequence[Name], lease: float) -> None:
        """Add hosts and wait until all hosts are active. If a host fails, remove the hosts that this call added.

        Also extend the leases of the network, and of those ``hosts`` that the network already contains, to at least
        ``lease`` seconds from now. Raise NoSuchNetwork, ClusterFailed, TimedOut, or an error of SBF.
        """
        existing = self._find(network)
        if existing is None:
            raise NoSuchNetwork(f"network {network} is not known: create it with sbf requestvlan {network}")
        wanted = {_member_key(network, host): host for host in hosts}
        views = [view for view in (existing.root, *existing.members) if view.key in {network, *wanted}]
        clusters = [Cluster(self.client.sbf, view) for view in views]
        missing = wanted.keys() - {view.key for view in views}
        with self._deleted_on_error(f"network {network} on {', '.join(hosts)}") as new:
            for cluster in clusters:
                cluster.extend(lease)
            specs = {key: _member_spec(existing.root, host, lease) for key, host in wanted.items() if key in missing}
            added = [self._create(key, spec, new) for key, spec in specs.items()]
            for cluster in (*clusters, *added):
                cluster.wait_active(timeout=self._remaining_s)

    def remove(self, network: ClusterKey, hosts: Iterable[Name]) -> None:
        """Remove hosts and wait until their clusters are released. Idempotent.

        Raise NotFound if SBF knows neither a running nor an ended network with this key.
        """
        existing = self._find(network)
        if existing is None and self._get(network) is None:
            raise NotFound(f"network {network} is not known; list the networks: sbf dumpstate")
        keys = {_member_key(network, host) for host in hosts}
        members = existing.members if existing else ()
        self._end(Cluster(self.client.sbf, view) for view in members if view.key in keys)

    def ensure_none(self, network: ClusterKey, *, force: bool = False) -> None:
        """Release a network and wait until its VLAN ID is free.

        Raise Conflict if the network has hosts, unless ``force`` is true.
        """
        existing = self._find(network)
        if existing is None:
            return
        if existing.hosts and not force:
            raise Conflict(
                f"network {network} still has hosts: {', '.join(existing.hosts)}; first remove these hosts "
                "(sbf removehosts), or release the network together with its hosts (sbf forcereleasevlan)"
            )
        self._end([Cluster(self.client.sbf, existing.root)])

    def all(self) -> list[HostNetwork]:
        """Return every network that the caller may see, in key order."""
        views = [cluster.view for cluster in self.client.list()]
        roots = sorted((view for view in views if view.network is None), key=lambda view: view.key)
        return [HostNetwork(root, tuple(view for view in views if view.network == root.key)) for root in roots]

    @contextmanager
    def _deleted_on_error(self, subject: str) -> Iterator[dict[ClusterKey, UserName]]:
        """Yield an empty dict, to which the block adds the owner of each new cluster, by the cluster's key.

        If the block raises an exception, delete these clusters. Keep a cluster whose owner in SBF differs from the
        owner in the dict.
        """
        new: dict[ClusterKey, UserName] = {}
        try:
            yield new
        except BaseException as error:
            with suppress(TimedOut):
                found = [(self._get(key), owner) for key, owner in new.items()]
                self._end(cluster for cluster, owner in found if cluster and cluster.view.spec.owner == owner)
            if isinstance(error, TimedOut):
                raise TimedOut(
                    f"{subject} was not set up within {self.timeout:g} s; new clusters are being removed"
                ) from error
            raise

    def _create(self, key: ClusterKey, spec: ClusterSpec, new: dict[ClusterKey, UserName]) -> Cluster:
        """Create a cluster and add its key to ``new``.

        The key of a refused cluster is not added, because the key may belong to another cluster.
        """
        new[key] = spec.owner
        try:
            return self.client.create(key, spec)
        except REFUSALS:
            del new[key]
            raise

    @property
    def _remaining_s(self) -> float:
        return max(0.0, round(self.began + self.timeout - time.monotonic(), 1))

    def _find(self, network: ClusterKey) -> HostNetwork | None:
        """Return the network with this key, or None.

        Do not rely on the order of SBF's list: if SBF's clock was set back, a member cluster can precede the cluster
        that created the network.
        """
        views = [cluster.view for cluster in self.client.list(network=network)]
        root = next((view for view in views if view.key == network and view.network is None), None)
        return HostNetwork(root, tuple(view for view in views if view.network is not None)) if root else None

    def _end(self, clusters: Iterable[Cluster]) -> None:
        """Delete all clusters before waiting for the first end: SBF releases the clusters concurrently."""
        for cluster in [cluster.delete() for cluster in clusters]:
            cluster.wait_ended(timeout=self._remaining_s)

    def _get(self, key: ClusterKey) -> Cluster | None:
        try:
            return self.client.get(key)
        except NotFound:
            return None


def _member_spec(root: ClusterView, host: Name, lease: float) -> ClusterSpec:
    return ClusterSpec(owner=root.spec.owner, joins=root.key, hosts=(host,), lease_s=lease)


def _member_key(network: ClusterKey, host: Name) -> ClusterKey:
    # A dot would make the key look like a job's key (``12.pbssrv``) if the network's ID is a number.
    return ClusterKey(f"{network}_{host}")


def render_state_xml(networks: Iterable[HostNetwork]) -> str:
    """Return a ``<vlan ID="…">`` element for each network, with its ``<host>`` and ``<tag>`` elements.

    If all sites have the same VLAN ID, there is a single ``<tag>``, otherwise a ``<tag>`` for each site.
    """
    state = ET.Element("state")
    for network in networks:
        vlan = ET.SubElement(state, "vlan", ID=network.root.key)
        vlan_ids = network.root.vlans
        if len(set(vlan_ids.values())) == 1:
            ET.SubElement(vlan, "tag").text = str(next(iter(vlan_ids.values())))
        else:
            for site, vlan_id in sorted(vlan_ids.items()):
                ET.SubElement(vlan, "tag", site=site).text = str(vlan_id)
        for host in network.hosts:
            ET.SubElement(vlan, "host").text = host
    ET.indent(state)
    return ET.tostring(state, encoding="unicode")
