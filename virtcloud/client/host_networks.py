"""Networks for the legacy commands of ``sbf``. A network is created first. Then hosts are added and removed by name.

Each host is a member cluster, whose key consists of the network's ID and the host's name. Every call is idempotent. A
call that fails removes the clusters that it created. ``sbf dumpstate`` prints the networks as XML with one line for
each tag and host, because existing scripts parse this output with grep.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from virtcloud.client.api import Client, Cluster
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict, NoSuchNetwork, NotFound, OtherSpec, TimedOut
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """A network and its member clusters."""

    root: ClusterView
    members: tuple[ClusterView, ...]

    @property
    def hosts(self) -> list[Name]:
        """All hosts of the network, in name order."""
        return sorted({host for one in (self.root, *self.members) for host in one.spec.all_hosts})


@dataclass(frozen=True, slots=True)
class HostNetworks:
    """Networks with IDs that a scheduler passes. Create an instance for each command; ``timeout`` is in seconds."""

    client: Client
    timeout: float
    began: float = field(default_factory=time.monotonic)

    def ensure(self, network: ClusterKey, owner: str | None, sites: Iterable[str], lease: float) -> ClusterView:
        """Create a network at these sites (default: all) and wait until it is active. After an error, delete it."""
        found = self._find(network)
        if found is not None:
            return Cluster(self.client.sbf, found.root).wait_active(timeout=self._left).view
        names = tuple(sites) or tuple(site.name for site in self.client.sbf.sites())
        who = owner or self.client.sbf.whoami().name
        spec = ClusterSpec.model_validate({"owner": who, "sites": names, "lease_s": lease})
        with self._undoing(f"network {network}") as new:
            return self._create(network, spec, new).wait_active(timeout=self._left).view

    def add(self, network: ClusterKey, hosts: Sequence[Name], lease: float) -> None:
        """Add hosts and wait until all hosts are active. If a host fails, remove the hosts that this call added.

        Raise NoSuchNetwork, ClusterFailed, TimedOut, and SBF's errors.
        """
        found = self._find(network)
        if found is None:
            raise NoSuchNetwork(f"network {network} is not known: create it with sbf requestvlan {network}")
        wanted = {_member_key(network, host): host for host in hosts}
        there = [Cluster(self.client.sbf, one) for one in (found.root, *found.members) if one.key in {network, *wanted}]
        known = {one.key for one in there}
        with self._undoing(f"network {network} on {', '.join(hosts)}") as new:
            for one in there:
                one.extend(lease)
            missing = [key for key in wanted if key not in known]
            added = [self._create(key, _member_spec(found.root, wanted[key], lease), new) for key in missing]
            for one in (*there, *added):
                one.wait_active(timeout=self._left)

    def remove(self, network: ClusterKey, hosts: Iterable[Name]) -> None:
        """Remove hosts and wait until their clusters are released. Idempotent."""
        found = self._find(network)
        keys = {_member_key(network, host) for host in hosts}
        self._end(Cluster(self.client.sbf, one) for one in (found.members if found else ()) if one.key in keys)

    def ensure_none(self, network: ClusterKey, *, force: bool = False) -> None:
        """Release a network and wait until its VLAN ID is free. Raise Conflict while it has hosts, unless ``force``."""
        found = self._find(network)
        if found is None:
            return
        if found.hosts and not force:
            raise Conflict(
                f"network {network} still has {', '.join(found.hosts)}: remove them first (sbf removehosts), "
                "or release it with them (sbf forcereleasevlan)"
            )
        self._end([Cluster(self.client.sbf, found.root)])

    def all(self) -> list[HostNetwork]:
        """Return every network that the caller may see, in key order."""
        views = [one.view for one in self.client.list()]
        roots = sorted((one for one in views if one.network is None), key=lambda one: one.key)
        return [HostNetwork(root, tuple(one for one in views if one.network == root.key)) for root in roots]

    @contextmanager
    def _undoing(self, what: str) -> Iterator[list[ClusterKey]]:
        """Delete the clusters in the yielded list if the block raises, even if SBF has not confirmed their creation."""
        new: list[ClusterKey] = []
        try:
            yield new
        except BaseException as error:
            with suppress(TimedOut):
                self._end(one for key in new if (one := self._there(key)) is not None)
            if isinstance(error, TimedOut):
                raise TimedOut(
                    f"{what} was not set up within {self.timeout:g} s; new parts are being removed"
                ) from error
            raise

    def _create(self, key: ClusterKey, spec: ClusterSpec, new: list[ClusterKey]) -> Cluster:
        """Create a cluster and record it in ``new``, unless another call created a cluster with this key meanwhile."""
        new.append(key)
        try:
            return self.client.create(key, spec)
        except OtherSpec:
            new.remove(key)
            raise

    @property
    def _left(self) -> float:
        return max(0.0, round(self.began + self.timeout - time.monotonic(), 1))

    def _find(self, network: ClusterKey) -> HostNetwork | None:
        found = [one.view for one in self.client.list(network=network)]
        return HostNetwork(found[0], tuple(found[1:])) if found and found[0].key == network else None

    def _end(self, clusters: Iterable[Cluster]) -> None:
        """Delete all clusters, then wait until each is released. SBF releases them concurrently."""
        for one in [one.delete() for one in clusters]:
            one.wait_ended(timeout=self._left)

    def _there(self, key: ClusterKey) -> Cluster | None:
        try:
            return self.client.get(key)
        except NotFound:
            return None


def _member_spec(root: ClusterView, host: Name, lease: float) -> ClusterSpec:
    return ClusterSpec(owner=root.spec.owner, joins=root.key, hosts=(host,), lease_s=lease)


def _member_key(network: ClusterKey, host: Name) -> ClusterKey:
    # a dot would make the key look like a job's, if the network's ID is a number
    return ClusterKey(f"{network}_{host}")


def render_state_xml(networks: Iterable[HostNetwork]) -> str:
    """Return a ``<vlan ID="…">`` element for each network, with its ``<host>`` and ``<tag>`` elements.

    If the VLAN ID is the same at all sites, there is a single ``<tag>``. Otherwise there is a ``<tag>`` for each site.
    """
    state = ET.Element("state")
    for network in networks:
        vlan = ET.SubElement(state, "vlan", ID=network.root.key)
        numbers = network.root.vlans
        if len(set(numbers.values())) == 1:
            ET.SubElement(vlan, "tag").text = str(next(iter(numbers.values())))
        else:
            for site, number in sorted(numbers.items()):
                ET.SubElement(vlan, "tag", site=site).text = str(number)
        for host in network.hosts:
            ET.SubElement(vlan, "host").text = host
    ET.indent(state)
    return ET.tostring(state, encoding="unicode")
